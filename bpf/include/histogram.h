// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Log-linear histogram: four linear buckets per octave from 2^10 ns to 2^30 ns, one bucket
// below and one above. controller/core/indicators/measurement.py has the same geometry, and a test
// compares the two over every bucket bound.
#pragma once

#define HISTOGRAM_MIN_ORDER 10
#define HISTOGRAM_MAX_ORDER 30
#define HISTOGRAM_BUCKETS (2 + 4 * (HISTOGRAM_MAX_ORDER - HISTOGRAM_MIN_ORDER))

static __always_inline u32 histogram_order(u32 value)
{
	u32 order = 0;

	if (value >> 16) {
		value >>= 16;
		order += 16;
	}
	if (value >> 8) {
		value >>= 8;
		order += 8;
	}
	if (value >> 4) {
		value >>= 4;
		order += 4;
	}
	if (value >> 2) {
		value >>= 2;
		order += 2;
	}
	return order + (value >> 1);
}

static __always_inline u32 histogram_bucket(u64 ns)
{
	if (ns < 1ULL << HISTOGRAM_MIN_ORDER)
		return 0;
	if (ns >= 1ULL << HISTOGRAM_MAX_ORDER)
		return HISTOGRAM_BUCKETS - 1;
	u32 value = ns;
	u32 order = histogram_order(value);

	return 1 + (order - HISTOGRAM_MIN_ORDER) * 4 + ((value >> (order - 2)) & 3);
}
