// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Writes the bucket number of each value of `input` in the probes' histogram to `output`.
#include <linux/types.h>
#include "histogram.h"

BPF_F_TABLE("array", u32, u64, input, VALUES, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, u64, output, VALUES, BPF_F_MMAPABLE);

RAW_TRACEPOINT_PROBE(sched_switch)
{
	for (u32 at = 0; at < VALUES; at++) {
		u32 key = at;
		u64 *value = input.lookup(&key);
		u64 *bucket = output.lookup(&key);

		if (value && bucket)
			*bucket = histogram_bucket(*value);
	}
	return 0;
}
