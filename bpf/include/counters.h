// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Perf counters per workload, read when a CPU changes from one workload to another.
//
// User space opens an event per counter and CPU and puts it into perf_0 ... perf_4. Reading one
// costs some 70 ns, so it is not done while a CPU stays with a workload; whoever stays for long
// is brought up to date by count_running, which user space runs on that CPU.
//
// A PMU with fewer counters than events takes turns. What was counted is scaled by the time that
// the event was enabled over the time that it counted, since it was opened: of a single run it
// would be all or nothing.
//
// Needs: NCPU, MAX_SLOTS, COUNTERS (0 to 5).
#pragma once

#if COUNTERS
// One cache line per slot and CPU, as struct account.
struct counters {
	u64 sum[5];
	u64 reserved[3];
};

struct counted_cpu {
	u64 reads; // tells user space that this CPU is up to date
	struct bpf_perf_event_value last[5];
};

BPF_F_TABLE("array", u32, struct counters, counters, MAX_SLOTS * NCPU, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct counted_cpu, counted_cpus, NCPU, BPF_F_MMAPABLE);
BPF_PERF_ARRAY(perf_0, NCPU);
#if COUNTERS > 1
BPF_PERF_ARRAY(perf_1, NCPU);
#endif
#if COUNTERS > 2
BPF_PERF_ARRAY(perf_2, NCPU);
#endif
#if COUNTERS > 3
BPF_PERF_ARRAY(perf_3, NCPU);
#endif
#if COUNTERS > 4
BPF_PERF_ARRAY(perf_4, NCPU);
#endif

// What the counter gained since the last look, which becomes this one.
static __always_inline u64 gained(struct bpf_perf_event_value *last,
				  struct bpf_perf_event_value *now)
{
	u64 gain = now->counter - last->counter;

	// The first look, or the event was opened anew because its CPU had been off.
	if (!last->enabled || now->counter < last->counter || now->enabled < last->enabled)
		gain = 0;
	if (now->running != now->enabled && now->running)
		gain = gain * ((now->enabled << 10) / now->running) >> 10;
	*last = *now;
	return gain;
}

static __always_inline void count_for(u32 id, u64 slot)
{
	struct bpf_perf_event_value now = {};
	struct counted_cpu *cpu = counted_cpus.lookup(&id);
	u32 key = slot * NCPU + id;
	struct counters *counter = counters.lookup(&key);

	if (!cpu || !counter)
		return;
	cpu->reads++;
	if (!perf_0.perf_counter_value(CUR_CPU_IDENTIFIER, &now, sizeof(now)))
		counter->sum[0] += gained(&cpu->last[0], &now);
#if COUNTERS > 1
	if (!perf_1.perf_counter_value(CUR_CPU_IDENTIFIER, &now, sizeof(now)))
		counter->sum[1] += gained(&cpu->last[1], &now);
#endif
#if COUNTERS > 2
	if (!perf_2.perf_counter_value(CUR_CPU_IDENTIFIER, &now, sizeof(now)))
		counter->sum[2] += gained(&cpu->last[2], &now);
#endif
#if COUNTERS > 3
	if (!perf_3.perf_counter_value(CUR_CPU_IDENTIFIER, &now, sizeof(now)))
		counter->sum[3] += gained(&cpu->last[3], &now);
#endif
#if COUNTERS > 4
	if (!perf_4.perf_counter_value(CUR_CPU_IDENTIFIER, &now, sizeof(now)))
		counter->sum[4] += gained(&cpu->last[4], &now);
#endif
}
#endif
