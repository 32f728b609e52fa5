// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Perf counters per workload, read when a CPU changes from one workload to another.
//
// User space opens an event per counter and CPU and puts it into `events`. Reading them is what
// costs, so it is not done while a CPU stays with a workload; who does is brought up to date by
// count_running, which user space runs on that CPU.
//
// A PMU with fewer counters than events takes turns. Then what was counted is scaled by the time
// that the event was enabled over the time that it counted, on this CPU since the last look at
// both: of a single run it would be all or nothing. Asking for the times makes a read dearer,
// so they are looked at every LOOK reads only, and by count_running.
//
// Needs: NCPU, MAX_SLOTS, COUNTERS (0 to 5).
#pragma once

#if COUNTERS
#define LOOK 64
#define UNITY 1024

// Indexed by CPU first: only this CPU writes what is beside it in a cache line.
struct counters {
	u64 sum[COUNTERS];
};

struct counted {
	u64 value; // at the last read, 0: not known
	u64 scale; // in 1/UNITY, 0: not known, and taken as UNITY
	u64 enabled; // at the last look
	u64 running;
};

struct counted_cpu {
	u64 reads;
	u64 dead;  // an event does not go on: its CPU was off meanwhile
	struct counted last[5];
	u64 pad[2]; // to a multiple of a cache line
};

BPF_F_TABLE("array", u32, struct counters, counters, MAX_SLOTS * NCPU, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct counted_cpu, counted_cpus, NCPU, BPF_F_MMAPABLE);
BPF_PERF_ARRAY(events, NCPU * COUNTERS);

static __always_inline u64 scaled(u64 gain, u64 scale)
{
	return scale && scale != UNITY ? gain * scale / UNITY : gain;
}

// Return whether the event still goes on.
static __always_inline bool look(struct counted *last, struct bpf_perf_event_value *now)
{
	u64 enabled = now->enabled - last->enabled, running = now->running - last->running;
	bool first = !last->enabled || now->enabled < last->enabled;

	// Not once in all that time: what it was before is the best guess.
	if (!first && running)
		last->scale = enabled == running ? UNITY : enabled * UNITY / running;
	last->enabled = now->enabled;
	last->running = now->running;
	return first || enabled;
}

static __always_inline void count_for(u32 id, u64 slot, bool looking)
{
	struct counted_cpu *cpu = counted_cpus.lookup(&id);
	u32 key = id * MAX_SLOTS + slot;
	struct counters *counter = counters.lookup(&key);

	if (!cpu || !counter)
		return;
	if (!(++cpu->reads & (LOOK - 1)))
		looking = true;
#pragma unroll
	for (u32 i = 0; i < COUNTERS; i++) {
		struct counted *last = &cpu->last[i];
		u64 value = events.perf_read(id * COUNTERS + i);

		// Errors are small negative numbers: the CPU was off, and has no event yet.
		if (value > -4096ULL)
			value = 0;
		if (last->value && value > last->value)
			counter->sum[i] += scaled(value - last->value, last->scale);
		last->value = value;
		if (looking) {
			struct bpf_perf_event_value now = {};

			if (!events.perf_counter_value(id * COUNTERS + i, &now, sizeof(now)))
				cpu->dead |= !look(last, &now);
		}
	}
}
#endif
