# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Run-queue indicators: percentiles and ratio of the waits for a CPU of one workload."""

from collections.abc import Callable, Mapping

from controller.core.decision import IndicatorStatus
from controller.core.indicators.histogram import arrival_delay_ns, quantile_ns
from controller.core.indicators.measurement import Measured
from controller.core.indicators.windows import WindowReading
from controller.core.model import IndicatorName
from controller.core.settings import IndicatorSpec

__all__ = ("WAITS", "measure_waits")


def _quantile(quantile: float) -> Callable[[WindowReading], float | None]:
    return lambda reading: quantile_ns(reading.waits, quantile)


WAITS: Mapping[IndicatorName, Callable[[WindowReading], float | None]] = {
    IndicatorName.RUNQ_P50: _quantile(0.50),
    IndicatorName.RUNQ_P95: _quantile(0.95),
    IndicatorName.RUNQ_P99: _quantile(0.99),
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
