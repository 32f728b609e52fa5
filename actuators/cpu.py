# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Actuators of the cpu controller: cpu.quota and cpu.idle.

cpu.quota is the CPU time that a cgroup may use per period (CFS bandwidth control). Canonical
value: ``QUOTA_US PERIOD_US BURST_US``, the quota ``max`` for no limit. Files: on v1
``cpu.cfs_quota_us`` (-1 for no limit), ``cpu.cfs_period_us``, ``cpu.cfs_burst_us``; on v2
``cpu.max`` and ``cpu.max.burst``. The limits of the kernel (quota at least 1,000 us, period 1,000
to 1,000,000 us) are not checked here; a refusal by the kernel is reported. Kernels before commit
f4183717b370 ("sched/fair: Introduce the burstable CFS controller", in v5.14) have no burst file;
the burst is then 0.

cpu.idle makes a cgroup run only while no sibling is runnable (Linux commit 304000390f88, "sched:
Cgroup SCHED_IDLE support", in v5.15). Canonical value: ``1`` (idle) or ``0 WEIGHT`` (normal; the
weight is ``cpu.shares`` on v1, ``cpu.weight`` on v2). The weight is part of the value because the
kernel does not keep it: the weight of an idle cgroup is fixed (v1 reads 3, v2 reads 1), writing it
fails with EINVAL, and a cgroup that becomes normal again gets 1024 on v1 and 100 on v2 (measured
on 6.18 and 6.12).
"""

import errno
from pathlib import Path
from typing import ClassVar, Literal

from actuators.base import Phase, RefusedError
from actuators.file_knob import CgroupKnob, Step
from actuators.foreign_values import is_quota_or_doubled
from actuators.kernfs import Cgroup
from controller.core.knob_values import (
    IDLE,
    Quota,
    format_idle,
    format_quota,
    parse_idle,
    parse_quota,
)
from controller.core.model import Knob, KnobValue

__all__ = (
    "CpuIdle",
    "CpuQuota",
)


class CpuQuota(CgroupKnob):
    """The actuator of ``Knob.CPU_QUOTA``."""

    knob = Knob.CPU_QUOTA
    files: ClassVar[dict[Literal["v1", "v2"], str]] = {"v1": "cpu.cfs_quota_us", "v2": "cpu.max"}

    def __init__(self, mount: Path, hierarchy: str, version: Literal["v1", "v2"]) -> None:
        super().__init__(mount, hierarchy, version)
        # On v1 a ratio of quota to period above that of the parent is refused with EINVAL
        # (tg_cfs_schedulable_down in kernel/sched/core.c).
        self.checks_ancestors = version == "v1"

    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return quota, period and burst of an open cgroup."""
        if self.version == "v1":
            quota_us = int(cgroup.read("cpu.cfs_quota_us"))
            quota = "max" if quota_us < 0 else str(quota_us)
            period = cgroup.read("cpu.cfs_period_us")
            burst_file = "cpu.cfs_burst_us"
        else:
            quota, period = cgroup.read("cpu.max").split()
            burst_file = "cpu.max.burst"
        try:
            burst = cgroup.read(burst_file)
        except RefusedError as error:
            if error.errno != errno.ENOENT:
                raise
            burst = "0"
        return format_quota(parse_quota(KnobValue(f"{quota} {period} {burst}")))

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: return the writes from *previous* to *value*.

        The burst stays when the quota changes, and the kernel refuses a quota below the burst:
        so the burst is set to 0 first and to its new value last. On v1 a change of the period
        alone changes the ratio, which the kernel checks against parent and children: so the
        quota is lifted, the period changed, and the quota set.
        """
        now, goal = parse_quota(previous), parse_quota(value)
        if now == goal:
            return ()
        steps: list[Step] = []
        limit_changes = now[:2] != goal[:2]
        if now.burst_us and limit_changes:
            now = now._replace(burst_us=0)
            steps.append(Step(self._burst_file, "0", format_quota(now)))
        if limit_changes:
            if self.version == "v1":
                steps += _v1_limit_steps(now, goal)
            else:
                now = now._replace(quota_us=goal.quota_us, period_us=goal.period_us)
                quota = "max" if goal.quota_us is None else goal.quota_us
                steps.append(Step("cpu.max", f"{quota} {goal.period_us}", format_quota(now)))
        if now.burst_us != goal.burst_us:
            steps.append(Step(self._burst_file, str(goal.burst_us), format_quota(goal)))
        return tuple(steps)

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: return whether *found* is *expected* or a doubling of it by the kernel.

        On v1 also with the period of another program: runc writes the period alone at each update
        of a container without a limit (libcontainer's ``CpuGroup.Set``), and leaves the quota.
        """
        return is_quota_or_doubled(expected, found, any_period=self.version == "v1")

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: quotas are lifted first, then lowered leaves first, then raised top first.

        On v1 a cgroup without a quota has that of its nearest ancestor. Lifting a quota is
        therefore always accepted, and may make a lower quota of an ancestor acceptable. A first
        quota may be acceptable only after that of an ancestor was raised.
        """
        now, goal = parse_quota(previous), parse_quota(value)
        if goal.quota_us is None:
            return Phase.ANY
        if now.quota_us is None:
            return Phase.LOOSEN
        less = goal.quota_us * now.period_us < now.quota_us * goal.period_us
        return Phase.TIGHTEN if less else Phase.LOOSEN

    @property
    def _burst_file(self) -> str:
        return "cpu.cfs_burst_us" if self.version == "v1" else "cpu.max.burst"


def _v1_limit_steps(now: Quota, goal: Quota) -> list[Step]:
    steps: list[Step] = []
    if now.period_us != goal.period_us:
        if now.quota_us is not None:
            now = now._replace(quota_us=None)
            steps.append(Step("cpu.cfs_quota_us", "-1", format_quota(now)))
        now = now._replace(period_us=goal.period_us)
        steps.append(Step("cpu.cfs_period_us", str(goal.period_us), format_quota(now)))
    if now.quota_us != goal.quota_us:
        quota = -1 if goal.quota_us is None else goal.quota_us
        now = now._replace(quota_us=goal.quota_us)
        steps.append(Step("cpu.cfs_quota_us", str(quota), format_quota(now)))
    return steps


_WEIGHT_FILE = {"v1": "cpu.shares", "v2": "cpu.weight"}
_WEIGHT_AFTER_IDLE = {"v1": 1024, "v2": 100}
# The kernel clamps cpu.shares (MIN_SHARES, MAX_SHARES) and refuses a cpu.weight out of range.
_SHARES_MIN, _SHARES_MAX = 2, 262_144


class CpuIdle(CgroupKnob):
    """The actuator of ``Knob.SCHED_IDLE``."""

    knob = Knob.SCHED_IDLE
    files: ClassVar[dict[Literal["v1", "v2"], str]] = {"v1": "cpu.idle", "v2": "cpu.idle"}

    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return idle state and weight of an open cgroup."""
        if int(cgroup.read("cpu.idle")):
            return IDLE
        return format_idle(int(cgroup.read(_WEIGHT_FILE[self.version])))

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: return the writes from *previous* to *value*."""
        now, goal = parse_idle(previous), parse_idle(value)
        if goal is None:
            return () if now is None else (Step("cpu.idle", "1", IDLE),)
        steps: list[Step] = []
        if now is None:
            now = _WEIGHT_AFTER_IDLE[self.version]
            steps.append(Step("cpu.idle", "0", format_idle(now)))
        if self.version == "v1":
            goal = min(max(goal, _SHARES_MIN), _SHARES_MAX)
        if now != goal:
            steps.append(Step(_WEIGHT_FILE[self.version], str(goal), format_idle(goal)))
        return tuple(steps)

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: lower weights first; the kernel accepts any order."""
        less = (parse_idle(value) or 0) < (parse_idle(previous) or 0)
        return Phase.TIGHTEN if less else Phase.LOOSEN
