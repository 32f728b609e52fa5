# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The value of an indicator for one workload, and for a service: that of its worst workload.

``WAITS`` are the run-queue indicators: percentiles and ratio of the waits for a CPU of a workload.
They are computed from a histogram, whose geometry the BPF probe shares. Its values are nanoseconds.
Bucket 0 holds waits below 1,024 ns. Every octave from 2**10 to 2**30 is divided into four equal
buckets. The last bucket holds waits of 2**30 ns (1.07 s) or more.

A quantile is interpolated linearly inside its bucket. Estimate and true value lie in the same
bucket, so the error is below the width of the bucket: at most 25 % of the true value between 1 us
and 1.07 s, and far less for waits that are spread over the bucket. Values below 1,024 ns are not
distinguished, and a quantile in the last bucket is reported as its lower bound.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import sub
from typing import NamedTuple

from controller.core.decision import Indicator, IndicatorStatus
from controller.core.model import CgroupId, IndicatorName
from controller.core.settings import IndicatorSpec

__all__ = (
    "BUCKETS",
    "LOWER_NS",
    "QUANTILES",
    "STALE",
    "UPPER_NS",
    "WAITS",
    "Measured",
    "WindowReading",
    "arrival_delay_ns",
    "difference",
    "measure_waits",
    "quantile_ns",
    "service_indicator",
    "sweet_point_at",
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


class WindowReading(NamedTuple):
    """What a workload did during the last ``span_ns`` nanoseconds.

    ``waits`` are counts per bucket of the histogram, ``samples`` their sum. ``oncpu_ratio``,
    ``inflicted_ratio`` and ``host_ratio`` (waits on CPUs that were idle or stood still) are CPUs
    (seconds per second). ``throttled_ns`` is ``None`` where it is not measured.
    """

    span_ns: int
    waits: list[int]
    samples: int
    oncpu_ratio: float
    inflicted_ratio: float
    throttled_ns: int | None
    host_ratio: float = 0.0

    @property
    def wait_ratio(self) -> float:
        """Inflicted wait as a share of the time during which the workload was runnable."""
        wanted = self.oncpu_ratio + self.inflicted_ratio
        return self.inflicted_ratio / wanted if wanted > 0 else 0.0

    @property
    def wanted_ns(self) -> float:
        """Time in which threads ran or were throttled, summed over them; at least one's time."""
        return max(self.span_ns, self.oncpu_ratio * self.span_ns + (self.throttled_ns or 0))


class Measured(NamedTuple):
    """The value of an indicator for one workload.

    ``fresh`` without a value: the workload runs, but there are too few events for a value.
    ``samples`` is the number of events behind the value, ``load`` the load of the workload in CPUs
    or, for ``cpu_per_packet``, in packets per second.
    """

    status: IndicatorStatus
    value: float | None = None
    samples: int = 0
    load: float = 0.0


STALE = Measured(IndicatorStatus.STALE)


def sweet_point_at(spec: IndicatorSpec, load: float) -> float | None:
    """Return the sweet point of a workload with *load*, in the unit of ``Measured.load``.

    ``None``: it is not learned yet.
    """
    sweet_point = spec.sweet_point
    for each in spec.bins:
        if load >= each.above:
            sweet_point = each.sweet_point
    return sweet_point


def service_indicator(
    service: str, spec: IndicatorSpec, workloads: Iterable[tuple[CgroupId | None, Measured]]
) -> Indicator:
    """Return the indicator of *spec* for a service: the value of the worst of its *workloads*.

    The worst workload is the one that exceeds the sweet point for its load by the largest factor.
    The indicator is fresh if that of one workload is, else idle if that of one is, else stale.
    """
    status = IndicatorStatus.STALE
    worst: tuple[float, CgroupId | None, Measured] | None = None
    samples = 0
    for cgroup, measured in workloads:
        samples += measured.samples
        if measured.status is IndicatorStatus.FRESH or status is IndicatorStatus.STALE:
            status = measured.status
        if measured.value is not None:
            factor = measured.value / (sweet_point_at(spec, measured.load) or 1.0)
            if worst is None or factor > worst[0]:
                worst = (factor, cgroup, measured)
    if worst is None:
        return Indicator(
            service=service, name=spec.name, value=None, samples=samples, status=status
        )
    return Indicator(
        service=service,
        name=spec.name,
        value=worst[2].value,
        samples=worst[2].samples,
        status=status,
        worst=worst[1],
        sweet_point=sweet_point_at(spec, worst[2].load) if spec.bins else None,
        load=worst[2].load,
    )


QUANTILES: Mapping[IndicatorName, float] = {
    IndicatorName.RUNQ_P50: 0.50,
    IndicatorName.RUNQ_P95: 0.95,
    IndicatorName.RUNQ_P99: 0.99,
}


def _quantile(quantile: float) -> Callable[[WindowReading], float | None]:
    return lambda reading: quantile_ns(reading.waits, quantile)


WAITS: Mapping[IndicatorName, Callable[[WindowReading], float | None]] = {
    **{name: _quantile(quantile) for name, quantile in QUANTILES.items()},
    IndicatorName.RUNQ_DELAY_P99: lambda reading: arrival_delay_ns(
        reading.waits, reading.span_ns, 0.99
    ),
    IndicatorName.WAIT_RATIO: lambda reading: reading.wait_ratio,
}


def measure_waits(
    spec: IndicatorSpec, reading: WindowReading | None, idle_oncpu_ratio: float
) -> Measured:
    """Return the value of *spec* (one of ``WAITS``) of a workload whose probe is alive.

    *reading* is the workload's window; ``None`` while it has no two samples. A service that uses
    and waits for less than *idle_oncpu_ratio* CPUs is idle.
    """
    if reading is None:
        return Measured(IndicatorStatus.FRESH)
    samples, cpus = reading.samples, reading.oncpu_ratio
    if _is_idle(reading, idle_oncpu_ratio):
        return Measured(IndicatorStatus.IDLE, None, samples, cpus)
    value = WAITS[spec.name](reading) if _is_enough(reading, spec.min_samples) else None
    return Measured(IndicatorStatus.FRESH, value, samples, cpus)


def _is_idle(reading: WindowReading, idle_oncpu_ratio: float) -> bool:
    # Waiting counts too, because a starved service hardly runs and is not idle.
    return reading.oncpu_ratio + reading.inflicted_ratio < idle_oncpu_ratio


def _is_enough(reading: WindowReading, min_samples: int) -> bool:
    # A service that waits longer than it runs is starved. Its waits are few because they are long,
    # so they are accepted even if there are fewer than min_samples.
    return reading.samples >= min_samples or (
        reading.samples > 0 and reading.inflicted_ratio > reading.oncpu_ratio
    )
