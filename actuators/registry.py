# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Every actuator there is, in one tuple; nothing registers itself by being imported."""

from actuators.base import Actuator
from actuators.core_scheduling.cookie import CoreCookie
from actuators.cpu import CpuIdle, CpuQuota
from actuators.freezer import freezers
from actuators.memory_io import IoMax, IoWeight, MemoryHigh
from actuators.resctrl.objects import ResctrlMounter, control_groups, monitoring_groups
from actuators.resctrl.schemata import ResctrlL3, ResctrlMb
from actuators.tc.ceiling import TcCeiling
from actuators.tc.pod_filter import TcPodFilter
from actuators.tc.tree import Programs, TcTree
from controller.host.facts import CgroupLayout

__all__ = ("CGROUP_KNOBS", "build")

CGROUP_KNOBS = (CpuIdle, CpuQuota, MemoryHigh, IoWeight, IoMax)


def build(
    layout: CgroupLayout, cookies: CoreCookie, programs: Programs | None = None
) -> tuple[Actuator, ...]:
    """Return the actuators for a host; ask each whether it is ``supported``.

    Also those for which it has no use now: an earlier run may have left something.

    :param cookies: the actuator that knows which cookies are ours.
    :param programs: what tells packets apart on links; needed to shape a link, not to undo it.
    """
    return (
        *(knob(layout.mount, layout.hierarchy, layout.version) for knob in CGROUP_KNOBS),
        *freezers(layout),
        cookies,
        ResctrlMounter(),
        control_groups(),
        monitoring_groups(),
        ResctrlMb(),
        ResctrlL3(),
        TcTree(programs),
        TcPodFilter(programs),
        TcCeiling(),
    )
