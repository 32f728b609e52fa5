# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Every actuator there is, in one tuple; nothing registers itself by being imported."""

from actuators.base import Actuator
from actuators.cgroup_freeze import freezers
from actuators.core_cookie import CoreCookie
from actuators.cpu_idle import CpuIdle
from actuators.cpu_quota import CpuQuota
from actuators.io_max import IoMax
from actuators.io_weight import IoWeight
from actuators.memory_high import MemoryHigh
from actuators.resctrl_group import control_groups, monitoring_groups
from actuators.resctrl_l3 import ResctrlL3
from actuators.resctrl_mb import ResctrlMb
from actuators.resctrl_mount import ResctrlMounter
from actuators.tc.ceiling import TcCeiling
from actuators.tc.mark import TcMark
from actuators.tc.tree import Programs, TcTree
from controller.host import CgroupLayout

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
        TcMark(programs),
        TcCeiling(),
    )
