// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// The cgroups above a cgroup, from the root downwards.
//
// Tasks may be nested in any number of cgroups below their workload, and in some containers a tenant
// makes those cgroups. So a search for the workload starts at the root: its length is the
// level of the workload's own cgroup, which no tenant chooses, and not the depth of the task. (A
// walk upwards with a bound would miss the workload of a task that is nested deeper than the
// bound, and every level of nesting would cost time in a context switch.)
//
// In a loop over levels the depth of the cgroup is compared inside the body: as a condition of the
// loop it makes the verifier walk the rest of the program once per level (106,000 instructions
// instead of 4,000 for sched_switch).
//
// Needs typed.h, -D: ANCESTOR_IDS and OFF_CGROUP_LEVEL, OFF_CGROUP_ANCESTORS; without ANCESTOR_IDS
// also OFF_CGROUP_KN, OFF_KERNFS_ID.
#pragma once

// Workloads in cgroups at this level or above are found. Pods are at level 3, in a nested
// kubelet at 6.
#define CGROUP_LEVELS 32

// 0 is the root.
static __always_inline u32 cgroup_level(u64 cgroup)
{
	return read_u32(cgroup + OFF_CGROUP_LEVEL);
}

// The kernfs id of the ancestor at @level, which is at most the level of @cgroup itself.
static __always_inline u64 ancestor_id(u64 cgroup, u32 level)
{
	u64 ancestor = read_u64(cgroup + OFF_CGROUP_ANCESTORS + level * sizeof(u64));

#if ANCESTOR_IDS
	return ancestor;
#else
	return read_u64(read_u64(ancestor + OFF_CGROUP_KN) + OFF_KERNFS_ID);
#endif
}
