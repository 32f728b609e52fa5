// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// The conventional measurement of run-queue latency, for comparison: every wakeup and every
// preemption stores a time stamp under the task's pid; the switch to the task removes the stamp and
// counts the difference in the histogram of the task's cgroup.
#include <linux/types.h>
#include "histogram.h"
#include "typed.h"

struct row {
	u64 cgroup;
	u64 bucket;
};

BPF_HASH(queued_at, u32, u64, 10240);
BPF_HASH(latencies, struct row, u64, 10240);

static __always_inline int stamp(u64 task)
{
	u32 pid = read_u32(task + OFF_TASK_PID);
	u64 now = bpf_ktime_get_ns();

	if (pid)
		queued_at.update(&pid, &now);
	return 0;
}

RAW_TRACEPOINT_PROBE(sched_wakeup)
{
	return stamp(ctx->args[0]);
}

RAW_TRACEPOINT_PROBE(sched_wakeup_new)
{
	return stamp(ctx->args[0]);
}

RAW_TRACEPOINT_PROBE(sched_switch)
{
	u64 prev = ctx->args[1], next = ctx->args[2];

	if (!read_u32(prev + OFF_TASK_STATE))
		stamp(prev);
	u32 pid = read_u32(next + OFF_TASK_PID);
	u64 *queued = queued_at.lookup(&pid);

	if (!queued)
		return 0;
	struct row row = {.bucket = histogram_bucket(bpf_ktime_get_ns() - *queued)};
	u64 group = read_u64(next + OFF_TASK_GROUP);
	u64 cgroup = read_u64(group + OFF_CSS_CGROUP);

	queued_at.delete(&pid);
	row.cgroup = read_u64(read_u64(cgroup + OFF_CGROUP_KN) + OFF_KERNFS_ID);
	latencies.increment(row);
	return 0;
}
