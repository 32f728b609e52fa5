# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the knobs in ``schemata`` of a control group have in common.

Canonical value: ``DOMAIN=VALUE;...`` sorted by domain. All domains are written in one go: the
kernel takes all of them or none (rdtgroup_schemata_write in the resctrl file system).

resctrl.l3: which ways of the last-level cache the tasks of a control group may fill.

Values are masks in lower-case hex. Where code and data have masks of their own (mounted with
``cdp``) both get the same one. What the kernel refuses (too few bits, a hole where the
hardware knows none, somebody's exclusive ways) is its to say.

resctrl.mb: how much memory bandwidth the tasks of a control group may use.

The unit is the mount's (``model.MbaUnit``): percent of throttling on Intel, which is only
roughly linear in bandwidth; absolute steps on AMD; MB/s where resctrl is mounted with
``mba_MBps``. Percent is rounded up to ``bandwidth_gran``; below ``min_bandwidth`` is refused.
"""

from typing import ClassVar

from actuators.base import Phase, RefusedError
from actuators.file_knob import Step, StepKnob
from actuators.resctrl.fs import Group
from controller.core.knob_values import format_domains, parse_bandwidth, parse_domains
from controller.core.model import Knob, KnobValue, Target, TargetKind
from controller.host.resctrl import ResctrlInfo, find_mount, parse_schemata, read_info

__all__ = (
    "ResctrlL3",
    "ResctrlMb",
    "SchemataKnob",
)


class SchemataKnob(StepKnob[Group]):
    """Base of the actuators of one resource; ``base`` is that of its numbers."""

    # Resources that are set alike: one, or the two that it is split into.
    resources: ClassVar[frozenset[str]]
    base: ClassVar[int]
    missing: ClassVar[str]

    def __init__(self) -> None:
        self.info: ResctrlInfo | None = None

    def applies_to(self, target: Target) -> bool:
        """Pure: control groups that are there, and the root group, which is only read."""
        return (
            target.kind is TargetKind.RESCTRL_GROUP
            and target.id != 0
            and "mon_groups" not in target.path.split("/")
        )

    def unsupported_reason(self) -> str | None:
        """Return why this host does not have the knob now, or ``None``."""
        mount = find_mount()
        if mount is None:
            return "resctrl is not mounted"
        has = [r for r in self.resources if (mount.point / "info" / r).is_dir()]
        return None if has else f"{mount.point}/info: {self.missing}"

    def open(self, target: Target) -> Group:
        """Return the open control group, with ``info`` up to date."""
        mount = find_mount()
        self.info = None if mount is None else read_info(mount)
        return Group(target)

    def read_from(self, group: Group) -> KnobValue:
        """Return the group's values.

        :raises RefusedError: it has none, or different ones where this knob would set equal ones.
        """
        schemata = parse_schemata(group.read("schemata"))
        found = {
            format_domains({d: int(value, self.base) for d, value in domains.items()}, self.base)
            for resource, domains in schemata.items()
            if resource in self.resources
        }
        if not found:
            raise RefusedError(0, f"{group.path}: schemata has no {self.knob}")
        if len(found) > 1:
            raise RefusedError(0, f"{group.path}: code and data have different masks")
        return found.pop()

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: the one write from *previous* to *value*."""
        goal = format_domains(parse_domains(value, self.base), self.base)
        return () if previous == goal else (Step("schemata", goal, goal),)

    def write_step(self, group: Group, step: Step) -> None:
        """Write all domains of all resources.

        :raises ValueError: the root group is to be restricted, in which everybody else runs.
        """
        if group.path.strip("/") == "":
            raise ValueError("the root group of resctrl is not ours to restrict")
        there = parse_schemata(group.read("schemata")).keys() & self.resources
        group.write(step.file, "".join(f"{r}:{step.text}\n" for r in sorted(there)))

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: less first; the kernel does not care."""
        now, goal = parse_domains(previous, self.base), parse_domains(value, self.base)
        less = sum(goal.values()) < sum(now.values())
        return Phase.TIGHTEN if less else Phase.LOOSEN


class ResctrlL3(SchemataKnob):
    """The actuator of ``Knob.LLC_WAYS``."""

    knob = Knob.LLC_WAYS
    resources: ClassVar[frozenset[str]] = frozenset({"L3", "L3CODE", "L3DATA"})
    base: ClassVar[int] = 16
    missing: ClassVar[str] = "no cache allocation (L3)"


class ResctrlMb(SchemataKnob):
    """The actuator of ``Knob.MBA``."""

    knob = Knob.MBA
    resources: ClassVar[frozenset[str]] = frozenset({"MB"})
    base: ClassVar[int] = 10
    missing: ClassVar[str] = "no memory bandwidth allocation (MB)"

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Touches no file: equal, or rounded up by the granularity that was read last."""
        step = 1 if self.info is None else self.info.facts.mba_step
        want, got = parse_bandwidth(expected), parse_bandwidth(found)
        return want.keys() == got.keys() and all(0 <= got[d] - want[d] < step for d in want)
