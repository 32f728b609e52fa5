// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Times in which a CPU stood still: the hypervisor ran something else on it.
//
// Two signs. Time that the hypervisor reports as stolen is summed up in the run queue
// (kernel/sched/core.c, update_rq_clock_task). The sum is read at every switch and after every timer,
// so at least once in a tick while the CPU is busy: what it grew by since is one stall, which ended
// with the last late timer meanwhile, else now. A kernel that adds no more to the sum than the time
// since its last update adds the rest later, and places it there.
//
// A hypervisor need not report it: then a timer that expires late shows it. Measured on a virtual
// machine: nearly all timers are 4 to 64 us late, one in two thousand more than 1 ms. A busy CPU has
// a timer in every tick, so a stall of more than a tick is mostly seen, but only from the time on at
// which the first timer was due; not on a CPU of nohz_full, or without high-resolution timers. Long
// sections of the kernel without interrupts look the same; no workload is to be blamed for them
// either.
//
// Only timers of the kernel count that are variables of the CPU, as the tick is: a program may set a
// timer of its own to a time that has passed, and would seem to stand still all the time.
//
// Needs typed.h, struct cpu, `cpus`, overlap(), -D: NCPU, OFF_HRTIMER_EXPIRES, OFF_HRTIMER_IS_SOFT.
// OFF_RQ_STOLEN may be missing.
#pragma once

#define STALL_NS 500000
// Less is not worth an interval.
#define STOLEN_NS 200000
#define STALLS 8
// Assumed: the kernel's own variables of a CPU are this close to its run queue, which is one of them.
#define CPU_VARIABLES (256 << 10)
#define LONGEST_STALL_NS 1000000000

struct stalls {
	u64 next;
	u64 stolen;  // the sum of stolen time when it was read last
	u64 read_at; // CLOCK_MONOTONIC when it was read after a timer
	struct {
		u64 start, end; // CLOCK_MONOTONIC
	} interval[STALLS];
};

BPF_F_TABLE("array", u32, struct stalls, stalls, NCPU, BPF_F_MMAPABLE);

// Several timers are late after one stall, and it may be reported as stolen too. Intervals do not
// overlap.
static __always_inline void add_stall(struct stalls *known, u64 start, u64 end)
{
	u64 last = (known->next - 1) & (STALLS - 1);
	u64 before = (known->next - 2) & (STALLS - 1);

	if (start <= known->interval[last].end) {
		if (start < known->interval[before].end)
			start = known->interval[before].end;
		if (start < known->interval[last].start)
			known->interval[last].start = start;
		if (end > known->interval[last].end)
			known->interval[last].end = end;
		return;
	}
	u64 at = known->next++ & (STALLS - 1);

	known->interval[at].start = start;
	known->interval[at].end = end;
}

// Take the sum of stolen time; it grew after `begin`, or after it was read last if that was later.
static __always_inline void take_stolen(struct stalls *known, u64 stolen, u64 begin, u64 now)
{
	s64 grown = stolen - known->stolen;

	known->stolen = stolen;
	if (grown < STOLEN_NS)
		return;
	if (begin < known->read_at)
		begin = known->read_at;
	u64 late = known->interval[(known->next - 1) & (STALLS - 1)].end;
	u64 end = late > begin && late < now ? late : now;

	if (grown > end - begin)
		grown = end - begin;
	add_stall(known, end - grown, end);
}

#ifdef OFF_RQ_STOLEN
// The tick has updated the run queue by now.
RAW_TRACEPOINT_PROBE(hrtimer_expire_exit)
{
	u32 id = bpf_get_smp_processor_id();
	struct cpu *cpu = cpus.lookup(&id);
	struct stalls *known = stalls.lookup(&id);

	if (!cpu || !known || !cpu->rq)
		return 0;
	u64 now = bpf_ktime_get_ns();
	// The last switch; before the first one there is no time in which the sum grew.
	u64 begin = cpu->since ? cpu->since - cpu->sync_clock + cpu->sync_mono : now;

	take_stolen(known, read_u64(cpu->rq + OFF_RQ_STOLEN), begin, now);
	known->read_at = now;
	return 0;
}
#endif

RAW_TRACEPOINT_PROBE(hrtimer_expire_entry)
{
	u64 timer = ctx->args[0];
	u64 now = read_u64(ctx->args[1]);
	s64 late = now - read_u64(timer + OFF_HRTIMER_EXPIRES);

	if (late < STALL_NS)
		return 0;
	u32 id = bpf_get_smp_processor_id();
	struct cpu *cpu = cpus.lookup(&id);
	struct stalls *known = stalls.lookup(&id);

	if (!cpu || !known || timer - cpu->rq + CPU_VARIABLES > 2 * CPU_VARIABLES)
		return 0;
	// Other clocks than the monotonic one differ from it by hours. Soft timers wait for a softirq.
	u64 mono = bpf_ktime_get_ns();
	u8 is_soft = 0;

	bpf_probe_read_kernel(&is_soft, sizeof(is_soft), (void *)(timer + OFF_HRTIMER_IS_SOFT));
	if (is_soft || now > mono || mono - now > LONGEST_STALL_NS || late > LONGEST_STALL_NS)
		return 0;
	add_stall(known, now - late, now);
	return 0;
}

// How much of the wait the CPU stood still.
static __always_inline u64 stalled_in_wait(struct cpu *cpu, u32 id)
{
	struct stalls *known = stalls.lookup(&id);
	u64 sum = 0;

	if (!known)
		return 0;
	u64 end = cpu->since - cpu->sync_clock + cpu->sync_mono;
	u64 start = end - (cpu->since - cpu->queued);

	for (u32 at = 0; at < STALLS; at++)
		sum += overlap(start, end, known->interval[at].start, known->interval[at].end);
	return sum;
}
