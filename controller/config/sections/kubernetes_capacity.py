# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``kubernetes.capacity:``: extended resources offered to best-effort pods."""

from enum import StrEnum
from typing import Annotated, NamedTuple

from controller.config.fields import RATIO, Strict, Text, duration, raw_default
from controller.core.units import NS_PER_SEC

__all__ = (
    "RESOURCES",
    "Dialect",
    "KubeCapacityConfig",
    "KubeCapacityModel",
    "ReclaimLimits",
    "ResourceNames",
    "build_kube_capacity",
)


class Dialect(StrEnum):
    """The project whose resource names are used."""

    SWEETPOINT = "sweetpoint"
    KOORDINATOR = "koordinator"
    KATALYST = "katalyst"


class ResourceNames(NamedTuple):
    """Names of the extended resources for CPU (in thousandths of a CPU) and memory (in bytes)."""

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


class ReclaimLimits(NamedTuple):
    """``reserve_ratio`` is the part of the node that is never offered.

    The peak of the use is taken over ``peak_ns``; the amount rises with the time constant
    ``rise_ns``.
    """

    reserve_ratio: float = 0.1
    peak_ns: int = 600 * NS_PER_SEC
    rise_ns: int = 120 * NS_PER_SEC


class KubeCapacityConfig(NamedTuple):
    """The checked section.

    Without ``enabled`` nothing is offered; the limits of pods that request ``names`` apply in
    either case. With ``forecast`` the use that past weeks let expect limits the offer. A change by
    more than ``change_ratio`` is published at most every ``interval_ns``, the time stamp at least
    every ``heartbeat_ns``.
    """

    enabled: bool = False
    forecast: bool = False
    names: ResourceNames = RESOURCES[Dialect.SWEETPOINT]
    cpu: ReclaimLimits = ReclaimLimits()
    memory: ReclaimLimits = ReclaimLimits()
    change_ratio: float = 0.05
    interval_ns: int = 60_000_000_000
    heartbeat_ns: int = 600_000_000_000


class KubeCapacityModel(Strict):
    """Extended resources that the node offers to best-effort pods."""

    enabled: bool = False
    """Whether unused CPU and memory are offered as extended resources of the node."""
    names: Annotated[Dialect, Text] = Dialect.SWEETPOINT
    """Whose resource names are used; take those that your best-effort pods request."""
    cpu_reserve: Annotated[float, RATIO] = raw_default("10%")
    """Share of the node's CPUs that is never offered."""
    memory_reserve: Annotated[float, RATIO] = raw_default("10%")
    """Share of the node's memory that is never offered."""
    forecast: bool = False
    """Whether the use expected from past weeks limits the offer too; it is learned and judged in
    either case."""
    peak_over: Annotated[int, duration("10s", "24h")] = raw_default("10m")
    """Time over which the peak use of all other work counts; lengthen it for services with rare
    peaks."""
    rise: Annotated[int, duration("1s", "1h")] = raw_default("2m")
    """Time constant with which the offer grows; it falls at once."""
    change: Annotated[float, RATIO] = raw_default("5%")
    """Change of the offer from which it is published before the next heartbeat."""
    # Every update is a write of the Node object, which the API server sends to all clients that
    # watch nodes.
    interval: Annotated[int, duration("1s", "10m")] = raw_default("1m")
    """Shortest time between two updates of the Node; lengthen it in large clusters."""
    heartbeat: Annotated[int, duration("10s", "1h")] = raw_default("10m")
    """Longest time between two updates of the Node; an offer is void after three of them."""


def build_kube_capacity(model: KubeCapacityModel) -> KubeCapacityConfig:
    """Return the checked section."""
    return KubeCapacityConfig(
        enabled=model.enabled,
        forecast=model.forecast,
        names=RESOURCES[model.names],
        cpu=ReclaimLimits(model.cpu_reserve, model.peak_over, model.rise),
        memory=ReclaimLimits(model.memory_reserve, model.peak_over, model.rise),
        change_ratio=model.change,
        interval_ns=model.interval,
        heartbeat_ns=model.heartbeat,
    )
