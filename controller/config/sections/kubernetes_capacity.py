# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``kubernetes.capacity:``, what of this node is offered to best-effort pods."""

from enum import StrEnum
from typing import Annotated, NamedTuple

from controller.config.fields import RATIO, Strict, Text, duration, written
from controller.core.control.reclaimable import ReclaimLimits

__all__ = (
    "RESOURCES",
    "Dialect",
    "KubeCapacityConfig",
    "KubeCapacityModel",
    "ResourceNames",
    "build_kube_capacity",
)


class Dialect(StrEnum):
    """Whose names the extended resources have."""

    SWEETPOINT = "sweetpoint"
    KOORDINATOR = "koordinator"
    KATALYST = "katalyst"


class ResourceNames(NamedTuple):
    """Names of extended resources: thousandths of a CPU, and bytes."""

    cpu: str
    memory: str


RESOURCES = {
    Dialect.SWEETPOINT: ResourceNames("sweetpoint.dev/cpu", "sweetpoint.dev/memory"),
    Dialect.KOORDINATOR: ResourceNames("kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"),
    Dialect.KATALYST: ResourceNames(
        "resource.katalyst.kubewharf.io/reclaimed_millicpu",
        "resource.katalyst.kubewharf.io/reclaimed_memory",
    ),
}


class KubeCapacityConfig(NamedTuple):
    """The checked section.

    Without ``enabled`` nothing is offered, and pods that ask for ``names`` are held to that all
    the same. News of more than ``change_ratio`` is published at most every ``interval_ns``, and
    the time stamp at least every ``heartbeat_ns``.
    """

    enabled: bool = False
    names: ResourceNames = RESOURCES[Dialect.SWEETPOINT]
    cpu: ReclaimLimits = ReclaimLimits()
    memory: ReclaimLimits = ReclaimLimits()
    change_ratio: float = 0.05
    interval_ns: int = 10_000_000_000
    heartbeat_ns: int = 60_000_000_000


class KubeCapacityModel(Strict):
    """Extended resources of the node for best-effort pods."""

    enabled: bool = False
    names: Annotated[Dialect, Text] = Dialect.SWEETPOINT
    cpu_reserve: Annotated[float, RATIO] = written("10%")
    memory_reserve: Annotated[float, RATIO] = written("10%")
    peak_over: Annotated[int, duration("10s", "24h")] = written("10m")
    rise: Annotated[int, duration("1s", "1h")] = written("2m")
    change: Annotated[float, RATIO] = written("5%")
    interval: Annotated[int, duration("1s", "10m")] = written("10s")
    heartbeat: Annotated[int, duration("10s", "10m")] = written("1m")


def build_kube_capacity(model: KubeCapacityModel) -> KubeCapacityConfig:
    """Return the checked section."""
    return KubeCapacityConfig(
        enabled=model.enabled,
        names=RESOURCES[model.names],
        cpu=ReclaimLimits(model.cpu_reserve, model.peak_over, model.rise),
        memory=ReclaimLimits(model.memory_reserve, model.peak_over, model.rise),
        change_ratio=model.change,
        interval_ns=model.interval,
        heartbeat_ns=model.heartbeat,
    )
