// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Blame: each CPU has a ring of the last changes of workload. After a long wait of a task of a
// latency-sensitive workload, the program walks the ring and charges every other workload that ran
// during the wait; the part beyond the ring goes to SLOT_UNKNOWN. The time in which the CPU stood
// still, or was idle and woke up late, is the host's: no workload is charged with it.
//
// Needs cgroups.h, stalls.h, struct cpu, struct account, RING, SHED_BLAME, `blame`, weight_shift(),
// -D: MAX_SLOTS, BLAME.
#pragma once

static __always_inline void charge(struct cpu *cpu, struct account *account, u64 culprit, u64 ns)
{
	u32 key = ((u32)cpu->latency - 1) * MAX_SLOTS + culprit;
	u64 *sum = blame.lookup(&key);

	if (!sum)
		return;
	ns <<= weight_shift(cpu);
	__sync_fetch_and_add(sum, ns);
	account->inflicted_ns += ns;
}

// Charge the wait [queued, since], less its throttled and stalled shares, to the slots that ran.
static __always_inline void blame_wait(struct cpu *cpu, u32 id, struct account *account,
				       u64 throttled)
{
#if BLAME
	u64 wait = cpu->since - cpu->queued;
	u64 stalled = stalled_in_wait(cpu, id);

	if (stalled > wait - throttled)
		stalled = wait - throttled;
	account->host_ns += stalled << weight_shift(cpu);
	u64 share_1024 = ((wait - throttled - stalled) << 10) / wait;

	if (cpu->shed & SHED_BLAME) {
		charge(cpu, account, SLOT_UNKNOWN, wait - throttled - stalled);
		return;
	}
	cpu->walk = cpu->since;
	// The newest run is that of the waiter's own workload; its length is zero unless another
	// task of the workload ran just before.
	for (u32 back = 0; back < RING; back++) {
		struct run *run = &cpu->ring[(cpu->head - back) & (RING - 1)];
		u64 end = cpu->walk;
		u64 start = run->since > cpu->queued ? run->since : cpu->queued;

		if (!run->since)
			break;
		u64 ns = end > start ? (end - start) * share_1024 >> 10 : 0;

		// A usual wake-up of an idle CPU is shorter, also from deep sleep.
		if (run->slot == SLOT_IDLE)
			account->host_ns += ns >= STALL_NS ? ns << weight_shift(cpu) : 0;
		else if (ns && run->slot != cpu->slot)
			charge(cpu, account, run->slot, ns);
		cpu->walk = start;
		if (start == cpu->queued)
			return;
	}
	if (cpu->walk > cpu->queued)
		charge(cpu, account, SLOT_UNKNOWN, (cpu->walk - cpu->queued) * share_1024 >> 10);
#endif
}
