# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The control groups of classes: fixed cache ways and memory bandwidth for services.

A class has a control group while a workload has it. Its limits are written before its first task
joins, and again if another program changed them. The loop never moves them. Where CLOSIDs run out,
the workloads of the class stay in the root group, and the reason is its problem.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
import logging
import math

from actuators.executor import Executor
from controller.config.sections.resctrl import ResctrlClass
from controller.core.decision import Action
from controller.core.knob_values import (
    format_bandwidth,
    format_masks,
    parse_bandwidth,
    parse_masks,
)
from controller.core.model import Knob, KnobReading, KnobValue, QosClass, Target, Workload
from controller.core.settings import MbaUnit, Profile, ResctrlFacts
from controller.host.facts import CgroupLayout
from controller.host.resctrl import ResctrlInfo, ResctrlMount
from controller.probes.cgroup_moves import Move, Moves
from controller.reconcilers.resctrl.own_group import OwnGroup, Repairs

__all__ = ("ClassGroups", "ClassState", "limit_of")

_log = logging.getLogger(__name__)

_KNOBS = frozenset({Knob.LLC_WAYS, Knob.MBA})
_LACKS = "resctrl.classes has no such class"
# The root group, and that of best-effort work.
_OTHER_CLOSIDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassState:
    """State of one class; ``problem`` is the reason why its limits are not in force.

    ``tasks`` is the number of tasks in its group.
    """

    name: str
    present: bool
    tasks: int
    problem: str


class _Class:
    """A class with its group."""

    def __init__(self, given: ResctrlClass, executor: Executor, layout: CgroupLayout) -> None:
        self.given = given
        self.own = OwnGroup(given.group, f"limits of class {given.name}", executor, layout)
        self.repairs = Repairs()
        self.problem = ""


class ClassGroups:
    """Makes and fills the groups of *classes*.

    ``unknown``: the names of classes that profiles name and the configuration does not have.

    :param executor: makes the groups and writes their limits; its journal undoes that.
    :param layout: the hierarchy with the cgroups of the workloads.
    """

    def __init__(
        self, classes: Iterable[ResctrlClass], executor: Executor, layout: CgroupLayout
    ) -> None:
        self._executor = executor
        self._classes = {each.name: _Class(each, executor, layout) for each in classes}
        self._profiles: Mapping[str, Profile] = {}
        self._workloads: tuple[Workload, ...] = ()
        self.unknown: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """Return whether there are classes."""
        return bool(self._classes)

    @property
    def state(self) -> tuple[ClassState, ...]:
        """The present state, for reports."""
        unknown = (
            ClassState(
                name=name, present=False, tasks=0, problem="a profile names it, and " + _LACKS
            )
            for name in sorted(self.unknown)
        )
        return tuple(unknown) + tuple(
            ClassState(
                name=name,
                present=each.own.group is not None,
                tasks=0 if each.own.group is None else each.own.tasks.inside,
                problem=each.own.problem or each.problem,
            )
            for name, each in self._classes.items()
        )

    def set_profiles(self, profiles: Mapping[str, Profile]) -> None:
        """Take the classes that *profiles* name."""
        self._profiles = profiles
        named = {each.resctrl_class for each in profiles.values()} - {""}
        unknown = frozenset(named - self._classes.keys())
        for name in sorted(unknown - self.unknown):
            _log.warning("resctrl: a profile names the class %s, and %s", name, _LACKS)
        self.unknown = unknown
        self.set_workloads(self._workloads)

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Set the present workloads."""
        self._workloads = tuple(workloads)
        if not self._classes:
            return
        found: dict[str, list[Workload]] = {name: [] for name in self._classes}
        for each in self._workloads:
            if (name := self.class_of(each)) in found:
                found[name].append(each)
        for name, members in found.items():
            self._classes[name].own.set_workloads(members)

    def class_of(self, workload: Workload) -> str:
        """Return the name of the class of *workload*; empty: none."""
        if workload.qos is QosClass.BE:
            return ""
        profile = self._profiles.get(workload.profile)
        return workload.resctrl_class or ("" if profile is None else profile.resctrl_class)

    def reconcile(
        self,
        mount: ResctrlMount,
        info: ResctrlInfo,
        now_ns: int,
        moves: Moves | None,
        arrived: Iterable[Move],
    ) -> None:
        """Make missing groups, write their limits, and move tasks."""
        room = info.closids - _OTHER_CLOSIDS
        for each in self._classes.values():
            if each.own.tasks.idle and each.own.group is None:
                each.own.log_problem("")
                continue
            if room <= 0:
                text = f"this CPU has {info.closids} control groups, none is left"
                each.own.log_problem(f"class {each.given.name}: {text}")
                continue
            room -= 1
            if each.own.check(mount.point, now_ns) and each.own.group is not None:
                self._limit(each, each.own.group, info.facts, now_ns)
            each.own.move(now_ns, moves, arrived)

    def reset(self) -> None:
        """Start over after everything of the agent was undone."""
        for each in self._classes.values():
            each.own.reset()
            each.repairs.reset()

    def _limit(self, one: _Class, group: Target, facts: ResctrlFacts, now_ns: int) -> None:
        """Write the limits of a class where its group has others."""
        wanted = [
            (reading, limit_of(one.given, reading, facts))
            for reading in self._executor.read([group], _KNOBS)
        ]
        actions = [
            Action(
                target=group,
                knob=reading.knob,
                previous=reading.value,
                value=value,
                reason=f"class {one.given.name}",
            )
            for reading, value in wanted
            if reading.value != value
        ]
        if not actions:
            one.problem = _unit_problem(one.given, facts)
            return
        if not one.repairs.allow(now_ns):
            one.problem = f"{group.path}: another program changed the limits too often: left alone"
            return
        one.repairs.note(now_ns)
        outcomes = self._executor.execute(actions, now_ns=now_ns)
        failed = [each.message for each in outcomes if each.failure is not None]
        one.problem = "; ".join(failed) or _unit_problem(one.given, facts)


def _unit_problem(given: ResctrlClass, facts: ResctrlFacts) -> str:
    if given.bandwidth_ratio < 1 and facts.mba_unit is MbaUnit.MBPS:
        return f"class {given.name}: mb is a share, and resctrl is mounted with mba_MBps: no limit"
    return ""


def limit_of(given: ResctrlClass, reading: KnobReading, facts: ResctrlFacts) -> KnobValue:
    """Pure: return the value of the class *given* for the knob of *reading*, in all its domains.

    Begin and end of the ways are rounded up, as Koordinator does (its sloconfig and
    system.CalculateCatL3MaskValue), so that parts that meet do not overlap.
    """
    if reading.knob is Knob.LLC_WAYS:
        begin, end = (
            math.ceil(round(facts.llc_ways * each, 6))
            for each in (given.begin_ratio, given.end_ratio)
        )
        begin = max(0, min(begin, end - facts.llc_min_ways))
        mask = (1 << end) - (1 << begin)
        return format_masks(dict.fromkeys(parse_masks(reading.value), mask))
    most = facts.mba_max
    if given.bandwidth_ratio < 1 and facts.mba_unit is not MbaUnit.MBPS:
        step = max(1, facts.mba_step)
        steps = math.ceil(round(most * given.bandwidth_ratio / step, 6))
        most = min(most, max(facts.mba_min, steps * step))
    return format_bandwidth(dict.fromkeys(parse_bandwidth(reading.value), most))
