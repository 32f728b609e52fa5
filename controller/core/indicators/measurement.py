# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The value of an indicator for one workload, and for a service: that of its worst workload."""

from collections.abc import Iterable
from typing import NamedTuple

from controller.core.decision import Indicator, IndicatorStatus
from controller.core.model import CgroupId
from controller.core.settings import IndicatorSpec

__all__ = ("STALE", "Measured", "service_indicator", "sweet_point_at")


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
    service: str, spec: IndicatorSpec, workloads: Iterable[tuple[CgroupId, Measured]]
) -> Indicator:
    """Return the indicator of *spec* for a service: the value of the worst of its *workloads*.

    The worst workload is the one that exceeds the sweet point for its load by the largest factor.
    The indicator is fresh if that of one workload is, else idle if that of one is, else stale.
    """
    status = IndicatorStatus.STALE
    worst: tuple[float, CgroupId, Measured] | None = None
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
