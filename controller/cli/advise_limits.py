# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The present limits of services for ``sweetpoint advise``, read from their cgroups.

A pod with a container that has no limit has none itself. Then the limit of another container in it
is what throttles or kills.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from actuators.base import GoneError, RefusedError
from actuators.cpu import CpuQuota
from actuators.file_knob import CgroupKnob
from actuators.memory_io import MemoryMax
from controller.agent.history.sizes import Amounts, ServiceUses
from controller.core.knob_values import cpus_of, parse_amount
from controller.core.model import KnobValue, QosClass, Target, TargetKind, Workload
from controller.host.facts import HostError, boot_id, find_cgroup_layout
from controller.host.memory import NO_LIMIT_V1_BYTES, find_memory

__all__ = ("InnerLimit", "PresentLimits", "present_limits")

_UNREADABLE = (GoneError, RefusedError, OSError, ValueError)


class InnerLimit(NamedTuple):
    """A limit, in CPUs or bytes, of the cgroup ``name`` in that of a workload."""

    limit: float
    name: str


class PresentLimits(NamedTuple):
    """The limits of a service, the lowest of each.

    ``own`` are those of the cgroups of its workloads. ``inner_cpu`` and ``inner_memory`` are of
    the containers in workloads without such a limit of their own; ``None``: there is none.
    """

    own: Amounts
    inner_cpu: InnerLimit | None = None
    inner_memory: InnerLimit | None = None

    @property
    def in_force(self) -> Amounts:
        """The limits that its use is compared with.

        A container uses no more CPUs than its limit, and so tells something of the whole workload.
        Its part of the memory is not measured.
        """
        inner, (cpus, memory_bytes) = self.inner_cpu, self.own
        return Amounts(inner.limit if cpus is None and inner else cpus, memory_bytes)

    def lowest(self, other: "PresentLimits") -> "PresentLimits":
        """Return the lower one of each, of those that there are."""
        return PresentLimits(
            self.own.lowest(other.own),
            min(filter(None, (self.inner_cpu, other.inner_cpu)), default=None),
            min(filter(None, (self.inner_memory, other.inner_memory)), default=None),
        )


def present_limits(uses: ServiceUses) -> dict[str, PresentLimits]:
    """Return the limits of the services that exist on this host, by name.

    A service is left out whose limits cannot be read, and all are if the history is that of another
    boot or host: another cgroup may have the same path and id there.
    """
    found: dict[str, PresentLimits] = {}
    if uses.boot_id != boot_id():
        return found
    try:
        cpu, memory = _knobs()
    except HostError:
        return found
    for workload in uses.workloads:
        if workload.qos is not QosClass.LS:
            continue
        limits = _limits(workload, cpu, memory)
        if limits is not None:
            found[workload.service] = found.get(workload.service, limits).lowest(limits)
    return found


def _knobs() -> tuple[CgroupKnob, CgroupKnob | None]:
    layout = find_cgroup_layout()
    memory = find_memory(layout.unified)
    cpu = CpuQuota(layout.mount, layout.hierarchy, layout.version)
    if memory.mount is None:
        return cpu, None
    return cpu, MemoryMax(memory.mount, memory.hierarchy, memory.version)


def _limits(workload: Workload, cpu: CgroupKnob, memory: CgroupKnob | None) -> PresentLimits | None:
    cgroup, path = workload.cgroup, workload.path
    try:
        cpus = cpus_of(cpu.read(Target(TargetKind.CGROUP, cgroup.hierarchy, cgroup.id, path)))
    except _UNREADABLE:
        return None
    inner_cpu = _lowest_inside(cpu, path, cpus_of) if cpus is None else None
    # On v1 it is a cgroup of another hierarchy, with an id of its own.
    own_bytes = None if memory is None else _limit(memory, path, _bytes_of)
    inner_memory = None
    if memory is not None and own_bytes is None:
        inner_memory = _lowest_inside(memory, path, _bytes_of)
    own = Amounts(cpus, None if own_bytes is None else round(own_bytes))
    return PresentLimits(own, inner_cpu, inner_memory)


def _bytes_of(value: KnobValue) -> float | None:
    limit_bytes = parse_amount(value)
    return None if limit_bytes >= NO_LIMIT_V1_BYTES else limit_bytes


def _limit(
    knob: CgroupKnob, path: str, limit_of: Callable[[KnobValue], float | None]
) -> float | None:
    """Return the limit of the cgroup at *path*; ``None``: it has none, or not this controller."""
    try:
        inode = (knob.mount / path[1:]).stat().st_ino
        return limit_of(knob.read(Target(TargetKind.CGROUP, knob.hierarchy, inode, path)))
    except _UNREADABLE:
        return None


def _lowest_inside(
    knob: CgroupKnob, path: str, limit_of: Callable[[KnobValue], float | None]
) -> InnerLimit | None:
    """Return the lowest limit of the cgroups in the one at *path*; ``None``: none has one."""
    found = (
        InnerLimit(limit, name)
        for name in _inside(knob.mount / path[1:])
        if (limit := _limit(knob, f"{path}/{name}", limit_of)) is not None
    )
    return min(found, default=None)


def _inside(folder: Path) -> Iterator[str]:
    try:
        yield from (each.name for each in folder.iterdir() if each.is_dir())
    except OSError:
        return
