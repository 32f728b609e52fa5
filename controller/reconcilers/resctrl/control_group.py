# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The resctrl control groups: that of best-effort work, and those of classes.

A control group takes one of the few CLOSIDs, so all best-effort work shares one group. An adopted
group (``resctrl.adopt``) belongs to another program, which also decides what runs in it: its limits
are set, but no task is moved into it or out of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
import logging

from actuators.executor import Executor
from actuators.resctrl.objects import MOUNTED, NOT_MOUNTED
from controller.config.sections.resctrl import ResctrlConfig
from controller.core.decision import Action
from controller.core.model import Knob, QosClass, Target, TargetKind, Workload
from controller.core.settings import Profile, ResctrlFacts
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.host.resctrl import RESCTRL_DIR, ResctrlInfo, find_mount, read_info
from controller.probes.cgroup_moves import Move, Moves
from controller.reconcilers.resctrl.class_groups import ClassGroups, ClassState
from controller.reconcilers.resctrl.own_group import OwnGroup, find_group

__all__ = (
    "ControlGroups",
    "GroupState",
)

_log = logging.getLogger(__name__)

_CHECK_NS = 5 * NS_PER_SEC


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """State of the resctrl control group; ``problem`` is the reason why it does not exist.

    ``tasks`` is the number of tasks in it, ``elsewhere`` the number of tasks of best-effort work
    that another program put into another group. ``joined`` and ``left`` count the tasks that were
    moved into and out of the group since the start. ``classes`` are those of the configuration.
    """

    group: str = ""
    present: bool = False
    problem: str = ""
    tasks: int = 0
    elsewhere: int = 0
    joined: int = 0
    left: int = 0
    classes: tuple[ClassState, ...] = ()


class ControlGroups:
    """Creates and fills the control groups; off, with the reason in ``problem``, if it cannot.

    ``facts``: what the group of best-effort work can be limited by; ``None``: nothing.

    :param executor: mounts resctrl, makes the groups and writes their tasks; its journal undoes
        that.
    :param layout: the hierarchy with the cgroups of the workloads.
    """

    def __init__(self, config: ResctrlConfig, executor: Executor, layout: CgroupLayout) -> None:
        self._config = config
        self._executor = executor
        self.problem = ""
        if config.mount:
            self._mount_resctrl(now_ns=0)
        self._mount = find_mount()
        self._info: ResctrlInfo | None = None
        self._adopted: Target | None = None
        self._own = OwnGroup(config.group, "limits for best-effort work", executor, layout)
        self._classes = ClassGroups(config.classes, executor, layout)
        self._check_due_ns = 0
        self._read_info()
        self.facts: ResctrlFacts | None = None
        if config.manage and self._info is not None:
            self.facts = self._info.facts
        if self._classes and self._info is None:
            _log.warning("resctrl.classes have no effect: %s", self.problem)

    @property
    def state(self) -> GroupState:
        """The present state, for reports."""
        tasks = self._own.tasks
        present = (self._adopted or self._own.group) is not None
        return GroupState(
            group=self._config.group,
            present=present,
            problem=self.problem or self._own.problem,
            tasks=tasks.inside if present else 0,
            elsewhere=tasks.elsewhere if present else 0,
            joined=tasks.joined,
            left=tasks.left,
            classes=self._class_states,
        )

    @property
    def _class_states(self) -> tuple[ClassState, ...]:
        found = self._classes.state
        if self._info is not None:
            return found
        return tuple(replace(each, problem=self.problem) for each in found)

    @property
    def moves_tasks(self) -> bool:
        """Whether tasks are put into groups, so that moves between cgroups matter."""
        return self._info is not None and (self._makes_group or bool(self._classes))

    @property
    def _makes_group(self) -> bool:
        return self.facts is not None and not self._config.adopted

    def targets(self, *, enforcing: bool) -> tuple[Target, ...]:
        """Return the group whose limits are read for the planner, if there is one.

        In observe mode no group is made: the root group is returned, because its limits are those
        that a new group would have.
        """
        if self._mount is None or self.facts is None:
            return ()
        point = self._mount.point
        if self._config.adopted:
            group = self._adopted = find_group(point, self._config.group)
            self.problem = "" if group else f"no group {self._config.group} to adopt"
        else:
            group = self._own.group if enforcing else find_group(point, "")
        return () if group is None else (group,)

    def has_class(self, workload: Workload) -> bool:
        """Return whether the tasks of *workload* belong in the group of a class."""
        return self._classes.class_of(workload) != ""

    def is_of_class(self, target: Target) -> bool:
        """Return whether *target* is the group of a class, which the planner must not move."""
        groups = {each.group for each in self._config.classes}
        return target.kind is TargetKind.RESCTRL_GROUP and target.path in groups

    def set_profiles(self, profiles: Mapping[str, Profile]) -> None:
        """Take the classes that *profiles* name."""
        self._classes.set_profiles(profiles)

    def set_workloads(self, workloads: tuple[Workload, ...]) -> None:
        """Set the present workloads: best-effort ones have one group, the others their class."""
        self._own.set_workloads(each for each in workloads if each.qos is QosClass.BE)
        self._classes.set_workloads(workloads)

    def reconcile(self, now_ns: int, moves: Moves | None, arrived: Iterable[Move] = ()) -> bool:
        """Make the groups that are missing and move tasks; to be called in enforce mode only.

        :param moves: the moves since the last tick, ``None`` without a move probe.
        :param arrived: tasks that begin to run in the cgroup of a workload.
        :return: whether ``targets`` changed.
        """
        before = self._own.group
        if self._config.mount and now_ns >= self._check_due_ns:
            self._check_due_ns = now_ns + _CHECK_NS
            self._mount_resctrl(now_ns)
            self._mount = find_mount()
        if self._mount is None or self._info is None:
            return False
        if self._makes_group:
            self._own.check(self._mount.point, now_ns)
            self._own.move(now_ns, moves, arrived)
        self._classes.reconcile(self._mount, self._info, now_ns, moves, arrived)
        return self._own.group != before

    def reset(self) -> None:
        """Start over after everything of the agent was undone."""
        self._own.reset()
        self._classes.reset()
        self._check_due_ns = 0

    def _mount_resctrl(self, now_ns: int) -> None:
        action = Action(
            target=Target(TargetKind.RESCTRL_GROUP, str(RESCTRL_DIR), 0, ""),
            knob=Knob.RESCTRL_MOUNT,
            previous=NOT_MOUNTED,
            value=MOUNTED,
            reason="the configuration says so",
        )
        if find_mount() is None:
            (outcome,) = self._executor.execute([action], now_ns=now_ns)
            if outcome.failure is not None:
                self._log_problem(outcome.message)

    def _read_info(self) -> None:
        if self._mount is None:
            self.problem = self.problem or "resctrl is not mounted"
            return
        try:
            info = read_info(self._mount)
        except (OSError, ValueError) as error:
            self._log_problem(f"{self._mount.point}: {error}")
            return
        if info.facts.mba_max or info.facts.llc_ways:
            self._info = info
        else:
            self.problem = "this CPU can limit neither memory bandwidth nor cache ways"

    def _log_problem(self, problem: str) -> None:
        if problem != self.problem:
            _log.warning("resctrl: %s", problem)
        self.problem = problem
