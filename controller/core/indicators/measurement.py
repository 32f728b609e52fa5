# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Indicators of a service: the worst of its workloads on this node, and what it means."""

from collections.abc import Iterable
from typing import NamedTuple

from controller.core.decision import Indicator, IndicatorStatus
from controller.core.model import CgroupId
from controller.core.settings import IndicatorSpec

__all__ = ("STALE", "Measured", "service_indicator", "sweet_point_at")


class Measured(NamedTuple):
    """What is known of one workload.

    ``fresh`` without a value: it runs, but too little is known to judge it. ``samples`` is the
    number of events behind it, ``cpus`` the workload's load.
    """

    status: IndicatorStatus
    value: float | None = None
    samples: int = 0
    cpus: float = 0.0


STALE = Measured(IndicatorStatus.STALE)


def sweet_point_at(spec: IndicatorSpec, cpus: float) -> float:
    """Return the sweet point of a workload that runs *cpus* CPUs."""
    sweet_point = spec.sweet_point
    for load in spec.bins:
        if cpus >= load.above_cpus:
            sweet_point = load.sweet_point
    return sweet_point


def service_indicator(
    service: str, spec: IndicatorSpec, workloads: Iterable[tuple[CgroupId, Measured]]
) -> Indicator:
    """Return the indicator that *spec* names, of the worst of the service's *workloads*.

    The worst is the one that exceeds the sweet point for its load by the largest factor. The
    service is fresh if one workload is, else idle if one is.
    """
    status = IndicatorStatus.STALE
    worst: tuple[float, CgroupId, Measured] | None = None
    samples = 0
    for cgroup, measured in workloads:
        samples += measured.samples
        if measured.status is IndicatorStatus.FRESH or status is IndicatorStatus.STALE:
            status = measured.status
        if measured.value is not None:
            excess = measured.value / sweet_point_at(spec, measured.cpus)
            if worst is None or excess > worst[0]:
                worst = (excess, cgroup, measured)
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
        sweet_point=sweet_point_at(spec, worst[2].cpus) if spec.bins else None,
    )
