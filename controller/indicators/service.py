# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Indicators of a service: the worst of its workloads on this node, and what it means."""

from collections.abc import Callable, Iterable, Mapping

from controller.indicators.histogram import arrival_delay_ns, quantile_ns
from controller.indicators.window import WindowReading
from controller.model import CgroupId, Indicator, IndicatorName, IndicatorSpec, IndicatorStatus

__all__ = ("service_indicator",)


def _quantile(quantile: float) -> Callable[[WindowReading], float | None]:
    return lambda reading: quantile_ns(reading.waits, quantile)


_VALUES: Mapping[IndicatorName, Callable[[WindowReading], float | None]] = {
    IndicatorName.RUNQ_P50: _quantile(0.50),
    IndicatorName.RUNQ_P95: _quantile(0.95),
    IndicatorName.RUNQ_P99: _quantile(0.99),
    IndicatorName.RUNQ_DELAY_P99: lambda reading: arrival_delay_ns(
        reading.waits, reading.span_ns, 0.99
    ),
    IndicatorName.WAIT_RATIO: lambda reading: reading.wait_ratio,
}


def service_indicator(
    service: str,
    spec: IndicatorSpec,
    idle_oncpu_ratio: float,
    readings: Iterable[tuple[CgroupId, WindowReading | None, bool]],
) -> Indicator:
    """Return the indicator that *spec* names, of the worst of the service's workloads.

    *readings* holds for each workload its window, or ``None``, and whether its source is
    alive. ``fresh`` without a value means: it runs, but too little is known to judge it yet.
    """
    status = IndicatorStatus.STALE
    worst: tuple[float, int, CgroupId] | None = None
    samples = 0
    compute = _VALUES.get(spec.name)
    for cgroup, reading, alive in readings:
        if not alive or compute is None:
            continue
        if reading is None:
            status = IndicatorStatus.FRESH
            continue
        samples += reading.samples
        if _is_idle(reading, idle_oncpu_ratio):
            if status is IndicatorStatus.STALE:
                status = IndicatorStatus.IDLE
            continue
        status = IndicatorStatus.FRESH
        value = compute(reading) if _is_enough(reading, spec.min_samples) else None
        if value is not None and (worst is None or value > worst[0]):
            worst = (value, reading.samples, cgroup)
    return Indicator(
        service=service,
        name=spec.name,
        value=worst[0] if worst else None,
        samples=worst[1] if worst else samples,
        status=status,
        worst=worst[2] if worst else None,
    )


def _is_idle(reading: WindowReading, idle_oncpu_ratio: float) -> bool:
    # Waiting counts as well: a starved service hardly runs either, and is anything but idle.
    return reading.oncpu_ratio + reading.inflicted_ratio < idle_oncpu_ratio


def _is_enough(reading: WindowReading, min_samples: int) -> bool:
    # A service that waits longer than it runs is starved; its waits are few because they are
    # long, so they count even when they are fewer than a percentile deserves.
    return reading.samples >= min_samples or (
        reading.samples > 0 and reading.inflicted_ratio > reading.oncpu_ratio
    )
