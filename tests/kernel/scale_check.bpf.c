// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// For each entry of `input`: gives the times of an event to the counters' code twice, then scales a
// gain with the result.
#include <linux/types.h>
#include "counters.h"

struct given {
	u64 enabled[2];
	u64 running[2];
	u64 gain;
};

struct found {
	u64 gain;
	u64 dead;
};

BPF_F_TABLE("array", u32, struct given, input, VALUES, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct found, output, VALUES, BPF_F_MMAPABLE);

RAW_TRACEPOINT_PROBE(sched_switch)
{
	for (u32 at = 0; at < VALUES; at++) {
		u32 key = at;
		struct given *given = input.lookup(&key);
		struct found *found = output.lookup(&key);
		struct counted last = {};
		struct bpf_perf_event_value now = {};

		if (!given || !found)
			return 0;
		now.enabled = given->enabled[0];
		now.running = given->running[0];
		look(&last, &now);
		now.enabled = given->enabled[1];
		now.running = given->running[1];
		found->dead = !look(&last, &now);
		found->gain = scaled(given->gain, last.scale);
	}
	return 0;
}
