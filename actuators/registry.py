# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The list of all actuators. Importing an actuator has no side effect: it is listed here."""

from actuators.base import Actuator
from actuators.core_scheduling.cookie import CoreCookie
from actuators.cpu import CpuIdle, CpuQuota
from actuators.cpuset import Cpuset
from actuators.freezer import freezers
from actuators.io_cost import IoCost
from actuators.memory_io import IoMax, IoWeight, MemoryHigh, MemoryMax
from actuators.oom_order import OomOrder
from actuators.resctrl.objects import ResctrlMounter, control_groups, monitoring_groups
from actuators.resctrl.schemata import ResctrlL3, ResctrlMb
from actuators.tc.ceiling import TcCeiling
from actuators.tc.pod_filter import TcPodFilter
from actuators.tc.tree import Programs, TcTree
from controller.host.facts import CgroupLayout
from controller.host.memory import find_memory

__all__ = ("CGROUP_KNOBS", "build")

CGROUP_KNOBS = (CpuIdle, CpuQuota, Cpuset, MemoryHigh, IoWeight, IoMax)


def build(
    layout: CgroupLayout,
    cookies: CoreCookie,
    oom_order: OomOrder,
    programs: Programs | None = None,
) -> tuple[Actuator, ...]:
    """Return the actuators for a host; see ``Actuator.unsupported_reason`` for each.

    Actuators of features that are switched off are included, because knobs that an earlier run
    changed have to be restored.

    :param cookies: the actuator of core-scheduling cookies, with its registry.
    :param oom_order: the actuator of oom_score_adj, with its registry.
    :param programs: the programs that classify packets; needed to shape a link, not to undo it.
    """
    return (
        *(knob(layout.mount, layout.hierarchy, layout.version) for knob in CGROUP_KNOBS),
        *_memory_max(layout),
        IoCost(layout),
        *freezers(layout),
        cookies,
        oom_order,
        ResctrlMounter(),
        control_groups(),
        monitoring_groups(),
        ResctrlMb(),
        ResctrlL3(),
        TcTree(programs),
        TcPodFilter(programs),
        TcCeiling(),
    )


def _memory_max(layout: CgroupLayout) -> tuple[MemoryMax, ...]:
    """Return the actuator of the memory limit; none on a host without the memory controller."""
    version, mount = memory = find_memory(layout.unified)
    return () if mount is None else (MemoryMax(mount, memory.hierarchy, version),)
