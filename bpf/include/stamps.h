// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Start times of waits, for kernels without task_struct.sched_info (neither CONFIG_SCHEDSTATS nor
// CONFIG_TASK_DELAY_ACCT): a stamp of the run queue's clock at every wakeup and preemption.
//
// Enqueueing has just updated that clock, so the stamp equals sched_info.last_queued. A stamp is
// kept through migrations, at which sched_info restarts. Only waiting tasks have a stamp: it is
// removed when the task is picked or goes to sleep. If more than MAX_QUEUED tasks wait at once,
// the latest ones are not measured.
//
// Needs typed.h, loaded without TYPED, and -D: STAMPS, OFF_TASK_STATE, OFF_TASK_CFS_RQ,
// OFF_CFS_RQ_RQ, OFF_RQ_CLOCK.
#pragma once

#if STAMPS
#define MAX_QUEUED 16384

BPF_HASH(queued_at, u64, u64, MAX_QUEUED);

static __always_inline int stamp_woken(u64 task)
{
	u64 rq = read_u64(read_u64(task + OFF_TASK_CFS_RQ) + OFF_CFS_RQ_RQ);
	u64 now = read_u64(rq + OFF_RQ_CLOCK);

	// insert keeps an existing stamp: a task that is woken while it waits began to wait before.
	queued_at.insert(&task, &now);
	return 0;
}

RAW_TRACEPOINT_PROBE(sched_wakeup)
{
	return stamp_woken(ctx->args[0]);
}

RAW_TRACEPOINT_PROBE(sched_wakeup_new)
{
	return stamp_woken(ctx->args[0]);
}

// args of sched_switch: preempted, previous task, next task
static __always_inline void stamp_previous(struct bpf_raw_tracepoint_args *ctx, u64 now)
{
	u64 task = ctx->args[1];

	// A wakeup while the task ran has left a stamp too, so update and delete ignore an old one.
	if (ctx->args[0] & 1 || !(u32)read_u64(task + OFF_TASK_STATE))
		queued_at.update(&task, &now);
	else
		queued_at.delete(&task);
}

static __always_inline u64 take_stamp(u64 task)
{
	u64 *stamp = queued_at.lookup(&task);
	u64 since = stamp ? *stamp : 0;

	if (stamp)
		queued_at.delete(&task);
	return since;
}
#endif
