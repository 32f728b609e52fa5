// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Perf counters per workload, read when a CPU changes from one workload to another.
//
// User space opens an event per counter and CPU and puts it into `events`. Reading the events is
// the main cost, so they are not read while a CPU stays with a workload. For such a workload
// count_running, which user space runs on that CPU, adds the counts.
//
// A PMU with fewer counters than events multiplexes them. A count is then scaled by the time that
// the event was enabled over the time that it counted, on this CPU since both times were read
// last; for a single run the ratio would be all or nothing. Reading the times makes a read more
// expensive, so they are read only with every LOOK-th read, and by count_running.
//
// Needs: NCPU, MAX_SLOTS, COUNTERS (0 to 5).
#pragma once

#if COUNTERS
#define LOOK 64
#define UNITY 1024

// Indexed by CPU first, so that only one CPU writes to a cache line.
struct counters {
	u64 sum[COUNTERS];
};

struct counted {
	u64 value; // at the last read, 0: unknown
	u64 scale; // in 1/UNITY, 0: unknown, and taken as UNITY
	u64 enabled; // when the times were read last
	u64 running;
};

struct counted_cpu {
	u64 reads;
	u64 dead;  // an event does not count any more: its CPU was off line in between
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

// Update the scale; return whether the event still counts.
static __always_inline bool look(struct counted *last, struct bpf_perf_event_value *now)
{
	u64 enabled = now->enabled - last->enabled, running = now->running - last->running;
	bool first = !last->enabled || now->enabled < last->enabled;

	// Without time running, the previous scale is the best estimate.
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

		// Errors are small negative numbers: the CPU was off line and has no event yet.
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
