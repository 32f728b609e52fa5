# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Geometry of the run-queue histogram, which the BPF probe shares, and quantiles from it.

Values are nanoseconds. Bucket 0 holds waits below 1,024 ns. Every octave from 2**10 to 2**30 is
divided into four equal buckets. The last bucket holds waits of 2**30 ns (1.07 s) or more.

A quantile is interpolated linearly inside its bucket. Estimate and true value lie in the same
bucket, so the error is below the width of the bucket: at most 25 % of the true value between 1 us
and 1.07 s, and far less for waits that are spread over the bucket. Values below 1,024 ns are not
distinguished, and a quantile in the last bucket is reported as its lower bound.
"""

from collections.abc import Sequence
from operator import sub

__all__ = (
    "BUCKETS",
    "LOWER_NS",
    "UPPER_NS",
    "arrival_delay_ns",
    "difference",
    "quantile_ns",
)

_FIRST_OCTAVE = 10
_LAST_OCTAVE = 30

BUCKETS = 2 + (_LAST_OCTAVE - _FIRST_OCTAVE) * 4

LOWER_NS: tuple[int, ...] = (
    0,
    *(
        (1 << octave) + part * (1 << (octave - 2))
        for octave in range(_FIRST_OCTAVE, _LAST_OCTAVE)
        for part in range(4)
    ),
    1 << _LAST_OCTAVE,
)
UPPER_NS: tuple[int, ...] = (*LOWER_NS[1:], 1 << _LAST_OCTAVE)
_MIDDLE_NS = tuple((lower + upper) / 2 for lower, upper in zip(LOWER_NS, UPPER_NS, strict=True))


def difference(newer: Sequence[int], older: Sequence[int]) -> list[int] | None:
    """Return the increase of each bucket between two cumulative histograms.

    ``None`` if a bucket shrank or the numbers of buckets differ. The histogram was re-based then,
    and the increase is unknown.
    """
    if len(newer) != len(older):
        return None
    counts = list(map(sub, newer, older))
    return None if min(counts, default=0) < 0 else counts


def quantile_ns(counts: Sequence[int], quantile: float) -> float | None:
    """Return the *quantile* (0..1) of the waits in *counts*, in ns; ``None`` without waits."""
    total = sum(counts)
    if total == 0:
        return None
    # From the top, because the quantiles in use are high and most buckets lie below them.
    above = total * (1.0 - quantile)
    for index in range(len(counts) - 1, -1, -1):
        count = counts[index]
        if count and count >= above:
            lower, upper = LOWER_NS[index], UPPER_NS[index]
            return upper - (upper - lower) * (above / count)
        above -= count
    return float(LOWER_NS[0])


def arrival_delay_ns(counts: Sequence[int], span_ns: int, quantile: float) -> float:
    """Return the *quantile* (0..1) of the waits of arrivals at random times, in ns.

    A percentile of waits counts a stall of 80 ms once, although all requests that arrive during it
    are delayed, which may be a hundred. A request that arrives at a random time within *span_ns*
    waits longer than x with probability ``sum(max(0, wait - x)) / span_ns``, which is the
    probability to arrive in a wait before its last x. The result is the x for which this is
    ``1 - quantile``. For a service of several tasks the probability is that of at least one waiting
    task, so the result is an upper bound.

    Every wait counts with the middle of its bucket, at most 12.5 % off between 1 us and 1.07 s.
    The result is below the longest wait, and 0 for a service that waits less than
    ``1 - quantile`` of the time.
    """
    missing_ns = (1.0 - quantile) * span_ns
    longer = 0
    waited_ns = 0.0
    for index in range(len(counts) - 1, -1, -1):
        count = counts[index]
        if not count:
            continue
        middle_ns = _MIDDLE_NS[index]
        # With x = middle_ns, the excess of all longer waits is waited_ns - longer * middle_ns. It
        # grows by `longer` for each ns by which x falls.
        if waited_ns - longer * middle_ns >= missing_ns and longer:
            break
        longer += count
        waited_ns += count * middle_ns
    return max(0.0, (waited_ns - missing_ns) / longer) if longer else 0.0
