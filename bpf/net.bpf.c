// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// IP bytes and packets per workload, in both directions.
//
// Attached at the root of the cgroup2 tree, so it sees every packet of every socket of the host.
// A packet belongs to the cgroup2 cgroup in which its socket was created (for an accepted socket:
// its listener). User space writes the ids of the workloads' directories into `slot_of_cgroup`; a
// packet of a cgroup below one of them counts for that workload.
//
// On one CPU a sender can be interrupted by a receiver and preempted by another sender. So the
// adds are atomic, on a cache line that no other CPU writes.
//
// Needs -D: NCPU, MAX_SLOTS.
#include <linux/types.h>

#define CGROUP_LEVELS 32 // as in ancestors.h

struct place {
	u32 slot;
	u32 unused;
};

// One region per CPU, so that CPUs share no cache line except where two regions meet.
struct traffic {
	u64 tx_bytes;
	u64 rx_bytes;
	u64 tx_packets;
	u64 rx_packets;
};

BPF_HASH(slot_of_cgroup, u64, struct place, MAX_SLOTS);
BPF_F_TABLE("array", u32, struct traffic, traffic, MAX_SLOTS * NCPU, BPF_F_MMAPABLE);

static __always_inline struct traffic *find(struct __sk_buff *skb)
{
	u64 id = bpf_skb_cgroup_id(skb);
	struct place *place = slot_of_cgroup.lookup(&id);

	// From the root downwards: see ancestors.h.
	for (int level = 1; !place && level <= CGROUP_LEVELS; level++) {
		id = bpf_skb_ancestor_cgroup_id(skb, level);
		if (!id)
			break;
		place = slot_of_cgroup.lookup(&id);
	}
	if (!place)
		return NULL;
	u32 index = bpf_get_smp_processor_id() * MAX_SLOTS + place->slot;

	return traffic.lookup(&index);
}

int count_tx(struct __sk_buff *skb)
{
	struct traffic *mine = find(skb);

	if (mine) {
		__sync_fetch_and_add(&mine->tx_bytes, skb->len);
		__sync_fetch_and_add(&mine->tx_packets, 1);
	}
	return 1; // let it pass
}

int count_rx(struct __sk_buff *skb)
{
	struct traffic *mine = find(skb);

	if (mine) {
		__sync_fetch_and_add(&mine->rx_bytes, skb->len);
		__sync_fetch_and_add(&mine->rx_packets, 1);
	}
	return 1;
}
