// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Events for tasks that join or leave the cgroups that user space follows.
//
// A task gets into a cgroup in three ways:
//   - It is moved: cgroup_attach_task, one event per write to cgroup.procs, fired when the task is
//     in its new cgroup.
//   - It is created in the cgroup of its parent: no event; it inherits the parent's attributes.
//   - It is created in another cgroup than its parent's (CLONE_INTO_CGROUP), which fires no
//     cgroup_attach_task: at sched_process_fork the two task groups differ. So every ordinary fork
//     on the host costs two reads and a comparison.
//
// User space writes the kernfs ids of the cgroups that it follows into `followed`. Cgroups below
// one of them belong to it.
//
// Needs -D: PAGE_SIZE, HIERARCHY (/proc/cgroups, 0 for cgroup v2), MAX_FOLLOWED, RING_PAGES, those
// of ancestors.h and the OFF_* below.
#include <linux/types.h>
#include "typed.h"
#include "ancestors.h"

struct unused {
	u32 first;
	u32 second;
};

struct event {
	u64 cgroup; // the followed cgroup in which the task is now, 0: none
	u32 tid;
	u32 tgid;
	u32 whole; // 1: all threads of the process, 0: this one
	u32 pad;
};

BPF_HASH(followed, u64, struct unused, MAX_FOLLOWED);
BPF_F_TABLE("array", u32, u64, lost, 1, BPF_F_MMAPABLE);
BPF_RINGBUF_OUTPUT(events, RING_PAGES);

static __always_inline void count_lost(void)
{
	u32 zero = 0;
	u64 *count = lost.lookup(&zero);

	if (count)
		__sync_fetch_and_add(count, 1);
}

static __always_inline u64 find_followed(u64 css)
{
	u64 cgroup = css ? read_u64(css + OFF_CSS_CGROUP) : 0;

	if (!cgroup) // an autogroup has no cgroup
		return 0;
	u32 depth = cgroup_level(cgroup);

	for (u32 level = 1; level <= CGROUP_LEVELS; level++) {
		if (level > depth)
			return 0;
		u64 id = ancestor_id(cgroup, level);

		if (followed.lookup(&id))
			return id;
	}
	// The search ended before the cgroup itself, so a followed one may be between.
	count_lost();
	return 0;
}

static __always_inline void tell(u64 css, u64 task, u32 whole)
{
	struct event event = {};

	event.cgroup = find_followed(css);
	event.tid = read_u32(task + OFF_TASK_PID);
	event.tgid = read_u32(task + OFF_TASK_TGID);
	event.whole = whole;
	// No wakeup: user space polls the ring once per tick.
	if (events.ringbuf_output(&event, sizeof(event), BPF_RB_NO_WAKEUP))
		count_lost();
}

// args: cgroup, path, task, threadgroup
RAW_TRACEPOINT_PROBE(cgroup_attach_task)
{
	u64 cgroup = ctx->args[0];

	if (read_u32(read_u64(cgroup + OFF_CGROUP_ROOT) + OFF_ROOT_HIERARCHY) == HIERARCHY)
		tell(cgroup + OFF_CGROUP_SELF, ctx->args[2], ctx->args[3] & 1);
	return 0;
}

// args: parent, child
RAW_TRACEPOINT_PROBE(sched_process_fork)
{
	u64 group = read_u64(ctx->args[1] + OFF_TASK_GROUP);

	if (group != read_u64(ctx->args[0] + OFF_TASK_GROUP))
		tell(group, ctx->args[1], 0);
	return 0;
}
