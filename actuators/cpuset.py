# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Actuator of cpuset.cpus, cgroup v2 only.

The CPUs on which tasks of a cgroup and of those below it may run. Canonical value: a cpulist, or
``all`` for no limit, which is an empty file or a list of all possible CPUs. The kernel refuses with
ENOSPC to empty the file of a cgroup that has tasks (validate_change in kernel/cgroup/cpuset.c,
tried on 6.12). Then all possible CPUs are written, which has the same effect.

On v2 a cgroup below may have any set: one outside its parent's counts for nothing. On v1 such a set
is refused, so kubelet and runc could not start containers there.
"""

import errno
from typing import ClassVar, Literal

from actuators.base import Phase, RefusedError
from actuators.file_knob import CgroupKnob, Step
from actuators.kernfs import Cgroup
from controller.core.knob_comparison import is_stricter
from controller.core.knob_values import ALL_CPUS, format_cpuset, parse_cpuset
from controller.core.model import Knob, KnobValue
from controller.core.units import parse_cpu_list
from controller.host.facts import possible_cpus

__all__ = ("Cpuset",)


class Cpuset(CgroupKnob):
    """The actuator of ``Knob.CPUSET``."""

    knob = Knob.CPUSET
    files: ClassVar[dict[Literal["v1", "v2"], str]] = {"v2": "cpuset.cpus"}

    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return the CPUs of an open cgroup."""
        cpus = parse_cpu_list(cgroup.read("cpuset.cpus"))
        return format_cpuset(cpus) if set(possible_cpus()) - set(cpus) and cpus else ALL_CPUS

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: return the write from *previous* to *value*."""
        cpus = parse_cpuset(value)
        text = "\n" if cpus is None else format_cpuset(cpus)
        return () if previous == value else (Step("cpuset.cpus", text, value),)

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: smaller sets first; the kernel accepts any order."""
        return Phase.TIGHTEN if is_stricter(self.knob, value, previous) else Phase.LOOSEN

    def write_step(self, directory: Cgroup, step: Step) -> None:
        """Write the set; where the file may not become empty, write all possible CPUs."""
        try:
            super().write_step(directory, step)
        except RefusedError as error:
            if step.state != ALL_CPUS or error.errno != errno.ENOSPC:
                raise
            super().write_step(directory, step._replace(text=format_cpuset(possible_cpus())))
