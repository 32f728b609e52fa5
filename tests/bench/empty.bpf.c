// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
#include <linux/types.h>

RAW_TRACEPOINT_PROBE(sched_switch)
{
	return 0;
}
