// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// The workload of a task.
//
// A workload is a cgroup of the cpu controller with all cgroups below it. User space writes the
// kernfs ids of the workloads' own cgroups into `slot_of_cgroup`; any other cgroup belongs to its
// ancestor in that map. The search is done once per task group and CPU: the result is cached
// by the address of the task group until a word of `generation` changes. User space increments one
// with every change of the map. The cgroup hooks increment the other: with a removal, before the
// memory of any task group can be reused, and with a creation, before the new cgroup has a task. A
// removal alone is not enough: a task that exits has left its cgroup, which can be removed then, and
// may be switched to once more before it is gone, so its group is cached again.
//
// Needs typed.h, ancestors.h, -DOFF_*: offsets in the running kernel's structs; sizes: MAX_CGROUPS.
#pragma once

#define SLOT_SYSTEM 0  // tasks outside all workloads
#define SLOT_IDLE 1    // the idle task
#define SLOT_UNKNOWN 2 // time that could not be attributed
#define GROUP_CACHE 16

struct owner {
	u32 slot;
	u32 latency; // 1 + index of its latency record, 0 for none
};

struct cached_group {
	u64 group;
	u64 generation;
	struct owner owner;
};

// A word for each writer: user space adds with a load and a store, between which a cgroup that is
// counted in the same word would be lost. Neither word falls, so equal sums are equal words.
struct generation {
	u64 cgroups; // made and removed
	u64 updates; // of slot_of_cgroup, by user space
};

BPF_HASH(slot_of_cgroup, u64, struct owner, MAX_CGROUPS);
BPF_F_TABLE("array", u32, struct generation, generation, 1, BPF_F_MMAPABLE);
// Number of cgroups created, removed or renamed; user space scans the tree when it changes.
BPF_F_TABLE("array", u32, u64, cgroup_changes, 1, BPF_F_MMAPABLE);

static __always_inline struct owner find_owner(u64 css)
{
	struct owner nobody = {SLOT_SYSTEM, 0};

	u64 cgroup = css ? read_u64(css + OFF_CSS_CGROUP) : 0;

	// An autogroup of the root has no cgroup.
	if (!cgroup)
		return nobody;
	u32 depth = cgroup_level(cgroup);

	for (u32 level = 1; level <= CGROUP_LEVELS; level++) {
		if (level > depth)
			return nobody;
		u64 id = ancestor_id(cgroup, level);
		struct owner *owner = slot_of_cgroup.lookup(&id);

		if (owner)
			return *owner;
	}
	// The search ended before the task's own cgroup: it may belong to a workload.
	nobody.slot = SLOT_UNKNOWN;
	return nobody;
}

// @group: the address of the task's group.
static __always_inline struct owner owner_of_group(struct cached_group *cache, u64 group)
{
	struct owner nobody = {SLOT_SYSTEM, 0};
	u32 zero = 0;
	struct generation *words = generation.lookup(&zero);

	if (!words)
		return nobody;
	// Read before the search: what changes during it makes the entry invalid.
	u64 now = *(volatile u64 *)&words->cgroups + *(volatile u64 *)&words->updates;
	// Without the low bits: task groups come from a slab with objects of some hundred bytes.
	struct cached_group *entry = &cache[(group >> 7 ^ group >> 11) & (GROUP_CACHE - 1)];

	if (entry->group == group && entry->generation == now)
		return entry->owner;
	struct owner owner = find_owner(group);

	// Autogroups are freed without a cgroup_rmdir, so they must not be cached.
	if (read_u64(group + OFF_CSS_CGROUP)) {
		entry->group = group;
		entry->generation = now;
		entry->owner = owner;
	}
	return owner;
}

static __always_inline int count_change(void)
{
	u32 zero = 0;
	u64 *changes = cgroup_changes.lookup(&zero);

	if (changes)
		__sync_fetch_and_add(changes, 1);
	return 0;
}

static __always_inline int drop_caches(void)
{
	u32 zero = 0;
	struct generation *words = generation.lookup(&zero);

	if (words)
		__sync_fetch_and_add(&words->cgroups, 1);
	return count_change();
}

RAW_TRACEPOINT_PROBE(cgroup_mkdir)
{
	return drop_caches();
}

RAW_TRACEPOINT_PROBE(cgroup_rename)
{
	return count_change();
}

RAW_TRACEPOINT_PROBE(cgroup_rmdir)
{
	return drop_caches();
}
