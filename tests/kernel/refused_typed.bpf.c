// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// The verifier accepts only the untyped variant: the typed one reads an argument out of range.
#include <linux/types.h>

BPF_ARRAY(runs, u64, 1);

int sched_switch(struct bpf_raw_tracepoint_args *ctx)
{
	int zero = 0;
	u64 *count = runs.lookup(&zero);

	if (count)
		__sync_fetch_and_add(count, 1);
#if TYPED
	return ctx->args[30];
#else
	return 0;
#endif
}
