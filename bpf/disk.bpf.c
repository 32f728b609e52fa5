// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// What disks do for workloads, and how long the requests of services take, from one hook.
//
// block_rq_complete fires when a request is done. The kernel stamped the request when it was made
// (start_time_ns, in the clock of bpf_ktime_get_ns), so there is no hook at its begin and no map of
// requests. A request belongs to the cgroup for which it was made: that of the task which reads or
// writes directly, and on cgroup v2 with the memory controller that of the page's owner (Writeback
// in Documentation/admin-guide/cgroup-v2.rst). On v1 the kernel writes pages back for the root
// cgroup, so these writes have no owner.
//
// A disk is taken as one server: its time from one completion to the next goes to the request that
// is completed, from the moment at which this one was made. While a service waits, the disk works
// for others; their part of the disk's time in the last 67 to 134 ms is the part of the wait that
// they inflicted.
//
// Several CPUs complete requests of one disk. The sums are added atomically; a race for the stamps
// of a disk makes one interval count twice or not at all.
//
// A request is often completed on a CPU whose caches hold nothing of this program, so what counts is
// how much memory it touches. A disk is found by the number of its queue, and the workload of a
// cgroup is searched once in 67 ms and CPU.
//
// Needs typed.h, ancestors.h, -D: TYPED, MAX_SLOTS, MAX_DISKS and the OFF_* below.
#include <linux/types.h>
#include "typed.h"
#include "ancestors.h"

#define OP_MASK 0xff	   // REQ_OP_MASK
#define OP_READ 0	   // REQ_OP_READ
#define OP_WRITE 1	   // REQ_OP_WRITE
#define SYNC (1U << 11)	   // REQ_SYNC: a task waits for it
#define SHARE_SHIFT 26	   // the part of best-effort is of the last one or two times 67 ms
#define FOUND 64	   // a power of two

struct place {
	u32 slot;
	u32 best_effort;
};

// Where a cgroup belongs, as found in an epoch. What user space changes counts from the next one on.
struct found {
	u64 cgroup; // its kernfs id, which no later cgroup gets
	u64 epoch;  // now >> SHARE_SHIFT
	struct place place;
};

struct work {
	u64 all_ns;
	u64 best_effort_ns;
};

struct disk {
	u64 last;  // when a request was completed
	u64 epoch; // last >> SHARE_SHIFT
	struct work work;
	struct work begin;  // work at the begin of this epoch
	struct work before; // and of the one before
};

struct requests {
	u64 count; // of reads, and writes for which a task waits
	u64 wait_ns;
	u64 inflicted_ns; // part of wait_ns in which the disk worked for best-effort
};

BPF_HASH(slot_of_cgroup, u64, struct place, MAX_SLOTS);
BPF_PERCPU_ARRAY(found, struct found, FOUND);
// By the number of the request queue, the lowest that is free (blk_queue_ida). A later disk with the
// same number goes on with the sums, of which only differences over 134 ms are used.
BPF_ARRAY(disks, struct disk, MAX_DISKS);
BPF_F_TABLE("array", u32, struct requests, requests, MAX_SLOTS, BPF_F_MMAPABLE);

static __always_inline struct place *place_of(u64 id)
{
	return slot_of_cgroup.lookup(&id);
}

// The workload of @cgroup, whose id is @id. Its own id takes plain loads. The others are searched
// from the root downwards: see ancestors.h.
static __always_inline struct place *find(u64 cgroup, u64 id)
{
	struct place *place = place_of(id);
	u32 depth = member_u32(cgroup, OFF_CGROUP_LEVEL);

	for (u32 level = 1; !place && level <= CGROUP_LEVELS; level++) {
		if (level >= depth)
			break;
		place = place_of(ancestor_id(cgroup, level));
	}
	return place;
}

// The same, searched once in an epoch. Slot MAX_SLOTS, which has no counters: it is in no workload.
static __always_inline struct place place_in(u64 cgroup, u64 epoch)
{
	struct place none = {.slot = MAX_SLOTS};
	u64 id = member_u64(member_u64(cgroup, OFF_CGROUP_KN), OFF_KERNFS_ID);
	u32 at = id & (FOUND - 1);
	struct found *known = found.lookup(&at);

	if (!known)
		return none;
	if (known->cgroup != id || known->epoch != epoch) {
		struct place *place = find(cgroup, id);

		known->cgroup = id;
		known->epoch = epoch;
		known->place = place ? *place : none;
	}
	return known->place;
}

// Add the time that @disk needed for a request made at @made.
static __always_inline void add_work(struct disk *disk, u64 now, u64 made, u64 best_effort)
{
	u64 last = disk->last;
	u64 begin = made > last ? made : last;
	u64 busy = now > begin ? now - begin : 0;
	u64 epoch = now >> SHARE_SHIFT;

	if (disk->epoch != epoch) {
		disk->before = disk->epoch + 1 == epoch ? disk->begin : disk->work;
		disk->begin = disk->work;
		disk->epoch = epoch;
	}
	disk->last = now;
	__sync_fetch_and_add(&disk->work.all_ns, busy);
	if (best_effort)
		__sync_fetch_and_add(&disk->work.best_effort_ns, busy);
}

// The part of @wait in which @disk worked for best-effort.
static __always_inline u64 inflicted(struct disk *disk, u64 wait)
{
	u64 all = disk->work.all_ns - disk->before.all_ns;
	u64 best_effort = disk->work.best_effort_ns - disk->before.best_effort_ns;

	if (!all || best_effort > all)
		return 0;
	// In 1024ths: all is below 2^28 or so, a wait below 2^53.
	return wait * ((best_effort << 10) / all) >> 10;
}

// args: request, error, nr_bytes
int block_rq_complete(struct bpf_raw_tracepoint_args *ctx)
{
	u64 request = ctx->args[0];
	u64 made = member_u64(request, OFF_REQUEST_START);
	u64 bio = member_u64(request, OFF_REQUEST_BIO);

	// Without a stamp the requests of the queue are not counted (queue/iostats is 0). A request may be
	// completed in parts, of which the last one counts.
	if (!made || !bio || (u32)ctx->args[2] < member_u32(request, OFF_REQUEST_LENGTH))
		return 0;
	u32 queue = member_u32(member_u64(request, OFF_REQUEST_QUEUE), OFF_QUEUE_ID);
	u64 group = member_u64(bio, OFF_BIO_BLKG);
	u64 css = group ? member_u64(group, OFF_BLKG_BLKCG) : 0;
	u64 cgroup = css ? member_u64(css, OFF_CSS_CGROUP) : 0;
	u64 now = bpf_ktime_get_ns();
	struct place place = {.slot = MAX_SLOTS};
	struct disk *disk = disks.lookup(&queue);

	if (!disk)
		return 0;
	if (cgroup)
		place = place_in(cgroup, now >> SHARE_SHIFT);
	add_work(disk, now, made, place.best_effort);
	struct requests *mine = requests.lookup(&place.slot);
	u32 flags = member_u32(request, OFF_REQUEST_FLAGS);
	u32 op = flags & OP_MASK;

	if (!mine)
		return 0;
	if (op != OP_READ && !(op == OP_WRITE && flags & SYNC))
		return 0;
	u64 wait = now > made ? now - made : 0;

	__sync_fetch_and_add(&mine->count, 1);
	__sync_fetch_and_add(&mine->wait_ns, wait);
	if (!place.best_effort)
		__sync_fetch_and_add(&mine->inflicted_ns, inflicted(disk, wait));
	return 0;
}
