// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Reading kernel memory, in the two ways that a program can be loaded.
//
// With TYPED, the arguments of the tracepoint are typed pointers (BPF_TRACE_RAW_TP): a plain load
// through one is allowed, gives another typed pointer where the member is one, and reads 0 where
// the address is bad. It costs about 1 ns, a bpf_probe_read_kernel some 25 to 45. A pointer keeps
// its type in registers only: what was stored in a map is a number.
#pragma once

static __always_inline u64 read_u64(u64 address)
{
	u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
	return value;
}

// A member of what a typed pointer points to. The offset has to stay a constant in the load.
static __always_inline u64 member_u64(u64 base, u32 offset)
{
#if TYPED
	return *(volatile u64 *)(base + offset);
#else
	return read_u64(base + offset);
#endif
}
