// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Tells user space that a latency-sensitive workload waits more than its sweet points allow.
//
// User space writes what each record may still have, and arms. The first wait beyond that is told,
// once: then user space has to arm again. So no load on the host makes it wake up more often. Waits of
// other workloads are not looked at.
//
// Needs struct cpu, weight_shift(), -D: WAKE (0 or 1), MAX_LATENCY.
#pragma once

#if WAKE
#define LIMITS 2 // sweet points per record

// A cache line. `seen` has waits longer than sweet_ns, and by how many ns they are longer.
struct limit {
	u64 sweet_ns; // by user space
	u64 seen[2];
	u64 most[2]; // by user space
	u64 pad[3];
};

struct limits {
	struct limit of[LIMITS];
};

// Armed while the words differ.
struct alarm {
	u64 armed; // by user space
	u64 told;
};

BPF_F_TABLE("array", u32, struct limits, limits, MAX_LATENCY, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct alarm, alarm, 1, BPF_F_MMAPABLE);
BPF_RINGBUF_OUTPUT(wakes, 1);
#endif

static __always_inline void tell_wait(struct cpu *cpu, u64 wait)
{
#if WAKE
	u32 record = cpu->latency - 1, zero = 0;
	struct limits *known = limits.lookup(&record);
	bool exceeded = false;

	if (!known)
		return;
	for (u32 at = 0; at < LIMITS; at++) {
		struct limit *limit = &known->of[at];

		if (wait <= limit->sweet_ns)
			continue;
		__sync_fetch_and_add(&limit->seen[0], 1 << weight_shift(cpu));
		__sync_fetch_and_add(&limit->seen[1], wait - limit->sweet_ns << weight_shift(cpu));
		if (limit->seen[0] > limit->most[0] || limit->seen[1] > limit->most[1])
			exceeded = true;
	}
	if (!exceeded)
		return;
	struct alarm *state = alarm.lookup(&zero);

	// Two CPUs may tell at the same time; user space wakes up once.
	if (!state || state->told == state->armed)
		return;
	state->told = state->armed;
	wakes.ringbuf_output(&record, sizeof(record), BPF_RB_FORCE_WAKEUP);
#endif
}
