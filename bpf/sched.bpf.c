// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Run-queue latency, on-CPU time and blame per workload, from one hook.
//
// At sched_switch the next task's sched_info.last_queued is still set, in the clock of its run
// queue, and that clock has just been updated: rq->clock - last_queued is exactly the time that
// the kernel adds to run_delay an instant later (kernel/sched/stats.h, sched_info_arrive). So
// there is no wakeup hook, no map of tasks and no clock of our own.
//
// On kernels without sched_info stamps.h replaces last_queued.
//
// After a wait longer than LONG_WAIT_NS of a task of a latency-sensitive workload, a program of its
// own finds out what the CPU did meanwhile: throttles.h, stalls.h and blame.h.
//
// Needs -D: TYPED, NCPU, MAX_SLOTS, MAX_CGROUPS, MAX_LATENCY, BLAME (0 or 1), COUNTERS (0 to 5),
// STAMPS (0 or 1), WAKE (0 or 1), and those of ancestors.h, cgroups.h, stalls.h, throttles.h and
// below. OFF_RQ_STOLEN may be missing.
#include <linux/types.h>
#include "histogram.h"
#include "typed.h"
#include "ancestors.h"
#include "cgroups.h"
#include "counters.h"
#include "stamps.h"

#define LONG_WAIT_NS 20000
#define RING 64
#define SYNC_NS 1000000
// Detail that user space can switch off when the program costs too much.
#define SHED_COUNTERS 1
#define SHED_BLAME 2 // waits are charged to SLOT_UNKNOWN
#define SHED_WAITS 4 // one wait of four is processed, and counts for four
#define SAMPLE_SHIFT 2

// One cache line per slot and CPU; only that CPU writes it.
struct account {
	u64 oncpu_ns;
	u64 wait_ns;
	u64 inflicted_ns;
	u64 waits;
	u64 throttled_ns;
	u64 host_ns; // of long waits: the time in which the CPU was idle or stood still
	u64 pad[2];
};

struct latency {
	u32 bucket[HISTOGRAM_BUCKETS];
	u32 pad[14]; // to a multiple of a cache line
};

struct run {
	u64 since;
	u64 slot;
};

struct cpu {
	u64 since;      // rq clock at the last switch
	u64 slot;       // the slot that runs since then
	u64 sync_clock; // a pair of rq clock and CLOCK_MONOTONIC, at most SYNC_NS old
	u64 sync_mono;
	u64 switches;
	u64 rq;
	u64 idle; // without TYPED: cached to save reads, as is rq
	u64 head;
	u64 queued;  // of the task that was picked last: start of its wait, and its latency record
	u64 latency;
	// Time that a walk of the ring has reached. In memory and not in a register: otherwise the
	// verifier distinguishes the states of all iterations.
	u64 walk;
	u64 group; // of the task that was picked last
	u64 shed;  // SHED_*, written by user space
	u64 running; // the task that was picked last
	u64 missed;  // switches for which the tracepoint was not fired
	u64 stolen;  // the run queue's sum of stolen time at the last switch
	struct cached_group cache[GROUP_CACHE];
	struct run ring[RING];
};

BPF_F_TABLE("array", u32, struct cpu, cpus, NCPU, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct account, accounts, MAX_SLOTS * NCPU, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct latency, latencies, MAX_LATENCY * NCPU, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, u64, blame, MAX_LATENCY * MAX_SLOTS, BPF_F_MMAPABLE);

static __always_inline u64 overlap(u64 start, u64 end, u64 from, u64 to)
{
	u64 low = start > from ? start : from;
	u64 high = end < to ? end : to;

	return high > low ? high - low : 0;
}

static __always_inline u64 weight_shift(struct cpu *cpu)
{
	return cpu->shed & SHED_WAITS ? SAMPLE_SHIFT : 0;
}

#include "stalls.h"
#include "throttles.h"
#include "blame.h"
#include "wake.h"

BPF_PROG_ARRAY(slow_path, 1);

static __always_inline void count_wait(struct cpu *cpu, u32 id, u64 latency, u64 wait)
{
	u32 key = (latency - 1) * NCPU + id;
	struct latency *record = latencies.lookup(&key);
	u32 bucket = histogram_bucket(wait);

	if (record && bucket < HISTOGRAM_BUCKETS)
		record->bucket[bucket] += 1 << weight_shift(cpu);
}

// The tail of sched_switch after a long wait of a latency-sensitive task, a program of its own:
// the verifier sees its loops once, and the fast path stays small. The switch is complete, so
// the newest entry of the ring is the run of the waiter's workload.
int long_wait(struct bpf_raw_tracepoint_args *ctx)
{
	u32 id = bpf_get_smp_processor_id();
	struct cpu *cpu = cpus.lookup(&id);

	if (!cpu)
		return 0;
	u32 key = cpu->slot * NCPU + id;
	struct account *account = accounts.lookup(&key);

	if (!account)
		return 0;
	u64 throttled = throttled_in_wait(cpu, ctx->args[2]);

	account->throttled_ns += throttled << weight_shift(cpu);
	blame_wait(cpu, id, account, throttled);
	u64 wait = cpu->since - cpu->queued - throttled;

	count_wait(cpu, id, cpu->latency, wait);
	tell_wait(cpu, wait);
	return 0;
}

#if COUNTERS
// Run by user space on each busy CPU: counts are otherwise added only when a workload leaves.
int count_running(struct bpf_raw_tracepoint_args *ctx)
{
	u32 id = bpf_get_smp_processor_id();
	struct cpu *cpu = cpus.lookup(&id);

	if (cpu)
		count_for(id, cpu->slot, true);
	return 0;
}
#endif

#if TYPED
static __always_inline u64 run_queue(struct cpu *cpu, u64 next)
{
	return member_u64(member_u64(next, OFF_TASK_CFS_RQ), OFF_CFS_RQ_RQ);
}

static __always_inline u64 idle_task(struct cpu *cpu, u64 rq)
{
	return member_u64(rq, OFF_RQ_IDLE);
}
#else
static __always_inline u64 run_queue(struct cpu *cpu, u64 next)
{
	if (!cpu->rq) {
		cpu->rq = read_u64(read_u64(next + OFF_TASK_CFS_RQ) + OFF_CFS_RQ_RQ);
		cpu->idle = read_u64(cpu->rq + OFF_RQ_IDLE);
	}
	return cpu->rq;
}

static __always_inline u64 idle_task(struct cpu *cpu, u64 rq)
{
	return cpu->idle;
}
#endif

static __always_inline void read_counters(struct cpu *cpu, u32 id, u64 slot)
{
#if COUNTERS
	if (slot != cpu->slot && !(cpu->shed & SHED_COUNTERS))
		count_for(id, cpu->slot, false);
#endif
}

static __always_inline void read_stolen(struct cpu *cpu, u32 id, u64 rq, u64 now)
{
#ifdef OFF_RQ_STOLEN
	u64 stolen = member_u64(rq, OFF_RQ_STOLEN);

	if (stolen == cpu->stolen)
		return;
	cpu->stolen = stolen;
	struct stalls *known = stalls.lookup(&id);
	u64 mono = bpf_ktime_get_ns();

	if (known)
		take_stolen(known, stolen, mono - (now - cpu->since), mono);
#endif
}

// Close the run that ends, open the next one.
static __always_inline void change_run(struct cpu *cpu, u32 id, u64 slot, u64 now)
{
#if BLAME
	if (slot != cpu->slot && !(cpu->shed & SHED_BLAME)) {
		cpu->head++;
		struct run *run = &cpu->ring[cpu->head & (RING - 1)];

		run->since = now;
		run->slot = slot;
	}
#endif
	// In this order, on which user space relies (controller/probes/sched_runs.py): a reader that
	// sees the new slot or sync_clock sees the new since or sync_mono, too.
	*(volatile u64 *)&cpu->since = now;
	*(volatile u64 *)&cpu->slot = slot;
	cpu->switches++;
	if (now - cpu->sync_clock > SYNC_NS) {
		*(volatile u64 *)&cpu->sync_mono = bpf_ktime_get_ns();
		*(volatile u64 *)&cpu->sync_clock = now;
	}
}

static __always_inline struct owner owner_of_task(struct cpu *cpu, u64 task)
{
	// Stored and loaded again it is a number, which may be hashed.
	*(volatile u64 *)&cpu->group = member_u64(task, OFF_TASK_GROUP);
	return owner_of_group(cpu->cache, *(volatile u64 *)&cpu->group);
}

static __always_inline void charge_run(struct cpu *cpu, u32 id, u64 now)
{
	u32 key = cpu->slot * NCPU + id;
	struct account *account = accounts.lookup(&key);

	if (account)
		account->oncpu_ns += now - cpu->since;
}

// The previous task is not the one that was picked last, so a switch did not fire the tracepoint
// (seen in a nested virtual machine, for every switch away from one CPU's idle task: a service
// that wakes up on an idle CPU would then not be charged for its run). The kernel has the length
// of this run; the wait before it is lost.
static __always_inline void catch_up(struct cpu *cpu, u32 id, u64 prev, u64 now)
{
	u64 ran = member_u64(prev, OFF_TASK_SUM_EXEC) - member_u64(prev, OFF_TASK_PREV_SUM_EXEC);

	cpu->missed++;
	if (ran > now - cpu->since)
		ran = now - cpu->since;
	charge_run(cpu, id, now - ran);
	u64 slot = owner_of_task(cpu, prev).slot;

	// Counters cannot be split: all counts go to the slot with the larger part of the time.
	if (ran < (now - cpu->since) / 2)
		read_counters(cpu, id, slot);
	change_run(cpu, id, slot, now - ran);
	if (cpu->sync_clock == now - ran) // CLOCK_MONOTONIC was read now
		cpu->sync_clock = now;
}

int sched_switch(struct bpf_raw_tracepoint_args *ctx)
{
	u32 id = bpf_get_smp_processor_id();
	struct cpu *cpu = cpus.lookup(&id);
	u64 prev = ctx->args[1], next = ctx->args[2];

	if (!cpu)
		return 0;
	u64 rq = run_queue(cpu, next);
	u64 now = member_u64(rq, OFF_RQ_CLOCK);

	*(volatile u64 *)&cpu->rq = rq;
	if (!now) // a bad address; has not been observed
		return 0;
	if (!cpu->since)
		cpu->since = now;
	read_stolen(cpu, id, rq, now);
#if STAMPS
	if (prev != idle_task(cpu, rq))
		stamp_previous(ctx, now);
#endif
	if (prev != cpu->running && cpu->running && prev != idle_task(cpu, rq))
		catch_up(cpu, id, prev, now);
	cpu->running = next;
	charge_run(cpu, id, now);
	if (next == idle_task(cpu, rq)) {
		read_counters(cpu, id, SLOT_IDLE);
		change_run(cpu, id, SLOT_IDLE, now);
		return 0;
	}
	struct owner owner = owner_of_task(cpu, next);
	u32 key = owner.slot * NCPU + id;
	struct account *account = accounts.lookup(&key);

	read_counters(cpu, id, owner.slot);
	change_run(cpu, id, owner.slot, now);
#if STAMPS
	u64 queued = take_stamp(next);
#else
	u64 queued = member_u64(next, OFF_TASK_LAST_QUEUED);
#endif

	if (!account || !queued || queued >= now)
		return 0;
	// By low bits of the clock, so that the sampling is not in step with a periodic load.
	if (cpu->shed & SHED_WAITS && (now ^ now >> 7) & ((1 << SAMPLE_SHIFT) - 1))
		return 0;
	account->wait_ns += now - queued << weight_shift(cpu);
	account->waits += 1 << weight_shift(cpu);
	if (!owner.latency)
		return 0;
	if (now - queued < LONG_WAIT_NS) {
		count_wait(cpu, id, owner.latency, now - queued);
		return 0;
	}
	cpu->queued = queued;
	cpu->latency = owner.latency;
	slow_path.call(ctx, 0);
	// Only reached while the program array is empty, during loading.
	count_wait(cpu, id, owner.latency, now - queued);
	return 0;
}
