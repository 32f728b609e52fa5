# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Actuators of the ``schemata`` file of a resctrl control group: resctrl.l3 and resctrl.mb.

Canonical value: ``DOMAIN=VALUE;...`` sorted by domain. All domains are written at once, and the
kernel accepts all of them or none (rdtgroup_schemata_write in the resctrl file system).

resctrl.l3 is the set of ways of the last-level cache into which the tasks of the group may
allocate. Values are masks in lower-case hex. With separate masks for code and data (mount option
``cdp``) both get the same mask. Restrictions (a minimum of bits, contiguous bits, exclusive ways
of another group) are not checked here; the refusal of the kernel is reported.

resctrl.mb limits the memory bandwidth of the tasks of the group. Its unit is that of the mount
(``settings.MbaUnit``): percent of throttling on Intel, which is only roughly linear in bandwidth;
absolute steps on AMD; MB/s with the mount option ``mba_MBps``. The kernel rounds percent up to
``bandwidth_gran`` and refuses values below ``min_bandwidth``.
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
    """Base of the actuators of one resource; ``base`` is the radix of its numbers."""

    # Names in schemata that get the same value: the resource, or its parts for code and data.
    resources: ClassVar[frozenset[str]]
    base: ClassVar[int]
    missing: ClassVar[str]  # the reason on hardware without the resource

    def __init__(self) -> None:
        self.info: ResctrlInfo | None = None

    def applies_to(self, target: Target) -> bool:
        """Pure: return whether *target* is an existing control group, or the root group.

        The root group is only read, see ``write_step``.
        """
        return (
            target.kind is TargetKind.RESCTRL_GROUP
            and target.id != 0
            and "mon_groups" not in target.path.split("/")
        )

    def unsupported_reason(self) -> str | None:
        """Return why this host lacks the knob at present, or ``None``."""
        mount = find_mount()
        if mount is None:
            return "resctrl is not mounted"
        has = [r for r in self.resources if (mount.point / "info" / r).is_dir()]
        return None if has else f"{mount.point}/info: {self.missing}"

    def open(self, target: Target) -> Group:
        """Return the open control group, and read ``info`` again."""
        mount = find_mount()
        self.info = None if mount is None else read_info(mount)
        return Group(target)

    def read_from(self, group: Group) -> KnobValue:
        """Return the value of the group.

        :raises RefusedError: the group has no such resource, or different masks for code and
            data, which this knob cannot express.
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
        """Pure: return the write from *previous* to *value*."""
        goal = format_domains(parse_domains(value, self.base), self.base)
        return () if previous == goal else (Step("schemata", goal, goal),)

    def write_step(self, group: Group, step: Step) -> None:
        """Write all domains of all resources.

        :raises ValueError: *group* is the root group, which contains all other tasks.
        """
        if group.path.strip("/") == "":
            raise ValueError("the root group of resctrl must not be restricted")
        present = parse_schemata(group.read("schemata")).keys() & self.resources
        group.write(step.file, "".join(f"{r}:{step.text}\n" for r in sorted(present)))

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: lower values first; the kernel accepts any order."""
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
        """Return whether *found* is *expected* or rounded up by less than the granularity.

        Accesses no file: the granularity is that of the last ``open``, 1 before the first.
        """
        step = 1 if self.info is None else self.info.facts.mba_step
        want, got = parse_bandwidth(expected), parse_bandwidth(found)
        return want.keys() == got.keys() and all(0 <= got[d] - want[d] < step for d in want)
