# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The value of an indicator for one workload, and for a service: that of its worst workload.

``WAITS`` are the run-queue indicators: percentiles and ratio of the waits for a CPU of a workload.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from controller.core.decision import Indicator, IndicatorStatus
from controller.core.indicators.histogram import arrival_delay_ns, quantile_ns
from controller.core.indicators.windows import WindowReading
from controller.core.model import CgroupId, IndicatorName
from controller.core.settings import IndicatorSpec

__all__ = (
    "QUANTILES",
    "STALE",
    "WAITS",
    "Measured",
    "measure_waits",
    "service_indicator",
    "sweet_point_at",
)


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
