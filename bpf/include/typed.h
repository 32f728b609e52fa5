// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Reads of kernel memory, for the two variants in which a program can be loaded.
//
// With TYPED, the arguments of the tracepoint are typed pointers (BPF_TRACE_RAW_TP): a plain load
// through one is allowed. It gives another typed pointer if the member is a pointer, and 0 if the
// address is bad. It costs about 1 ns, a bpf_probe_read_kernel some 25 to 45 ns. A pointer keeps
// its type in registers only: loaded from a map it is a number.
#pragma once

static __always_inline u64 read_u64(u64 address)
{
	u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
	return value;
}

static __always_inline u32 read_u32(u64 address)
{
	u32 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
	return value;
}

// Read a member through a typed pointer. The offset must stay a constant in the load.
static __always_inline u64 member_u64(u64 base, u32 offset)
{
#if TYPED
	return *(volatile u64 *)(base + offset);
#else
	return read_u64(base + offset);
#endif
}

static __always_inline u32 member_u32(u64 base, u32 offset)
{
#if TYPED
	return *(volatile u32 *)(base + offset);
#else
	return read_u32(base + offset);
#endif
}
