// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// How much of a wait the task's own CFS quota throttled it.
//
// sched_info counts that time as waiting. cfs_rq has the sum of it; its growth is kept as the last few
// intervals per cfs_rq and subtracted from the histogram and from the blame (wait_ns still contains
// it).
//
// Needs typed.h, struct cpu, RING, SHED_BLAME, overlap(), -D: NCPU, MAX_LATENCY, BLAME,
// OFF_TASK_CFS_RQ, OFF_CFS_RQ_THROTTLED.
#pragma once

#define THROTTLES 4

struct throttle {
	u64 seen;
	u64 next;
	struct {
		u64 start, end;
	} interval[THROTTLES];
};

// By cfs_rq: one per CPU of each throttled cgroup of a latency-sensitive workload. No entry is removed
// with its cgroup; one that was not used for long makes room for a new one.
BPF_TABLE("lru_hash", u64, struct throttle, throttles, 4096 + MAX_LATENCY * NCPU);

// The end of the victim's own last run on this CPU, not before the wait.
static __always_inline u64 last_own_run(struct cpu *cpu)
{
	if (cpu->shed & SHED_BLAME)
		return cpu->queued;
	cpu->walk = cpu->since;
#if BLAME
	for (u32 back = 1; back < RING; back++) {
		struct run *run = &cpu->ring[(cpu->head - back) & (RING - 1)];

		if (run->slot == cpu->slot)
			break;
		cpu->walk = run->since;
		if (run->since <= cpu->queued)
			break;
	}
#endif
	return cpu->walk > cpu->queued ? cpu->walk : cpu->queued;
}

// How much of the wait the task's group was throttled by a CFS quota.
static __always_inline u64 throttled_in_wait(struct cpu *cpu, u64 next)
{
	u64 cfs_rq = member_u64(next, OFF_TASK_CFS_RQ);
	u64 total = member_u64(cfs_rq, OFF_CFS_RQ_THROTTLED);

	if (!total)
		return 0;
	// A sum that does not fit into this wait is older, except for a part that is not known: the cfs_rq
	// was throttled before the probe was loaded, or its entry made room for another one.
	struct throttle first = {.seen = total <= cpu->since - cpu->queued ? 0 : total};
	struct throttle *known = throttles.lookup_or_try_init(&cfs_rq, &first);

	if (!known)
		return 0;
	if (total != known->seen) {
		u64 grown = total > known->seen ? total - known->seen : 0;
		u64 start = last_own_run(cpu);

		// Waits that are short or shed are not looked at, so the growth can be older than this.
		if (grown > cpu->since - start)
			grown = cpu->since - start;
		u64 at = known->next++ & (THROTTLES - 1);

		known->interval[at].start = start;
		known->interval[at].end = start + grown;
		known->seen = total;
	}
	u64 sum = 0;

	for (u32 at = 0; at < THROTTLES; at++)
		sum += overlap(cpu->queued, cpu->since, known->interval[at].start,
			       known->interval[at].end);
	return sum < cpu->since - cpu->queued ? sum : cpu->since - cpu->queued;
}
