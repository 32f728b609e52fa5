# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The resctrl control group of best-effort work.

A control group takes one of the few CLOSIDs, so all best-effort work shares one group. An adopted
group (``resctrl.adopt``) belongs to another program, which also decides what runs in it: its limits
are set, but no task is moved into it or out of it.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
import logging

from actuators.base import GoneError, RefusedError
from actuators.executor import Executor
from actuators.resctrl.objects import ABSENT, MOUNTED, NOT_MOUNTED, PRESENT
from actuators.resctrl.tasks import TaskMover
from controller.config.sections.knobs import ResctrlConfig
from controller.core.decision import Action
from controller.core.model import (
    Knob,
    Target,
    TargetKind,
    Workload,
)
from controller.core.settings import ResctrlFacts
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.host.resctrl import RESCTRL_DIR, ResctrlMount, find_mount, read_info
from controller.probes.cgroup_moves import Moves
from controller.reconcilers.resctrl.group_tasks import GroupTasks

__all__ = (
    "ControlGroup",
    "GroupState",
)

_log = logging.getLogger(__name__)

_CHECK_NS = 5 * NS_PER_SEC
# How often a group that another program removed is made again within the window.
_REPAIR_LIMIT = 3
_REPAIR_WINDOW_NS = 600 * NS_PER_SEC


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """State of the resctrl control group; ``problem`` is the reason why it does not exist.

    ``tasks`` is the number of tasks in it, ``elsewhere`` the number of tasks of best-effort work
    that another program put into another group. ``joined`` and ``left`` count the tasks that were
    moved into and out of the group since the start.
    """

    group: str = ""
    present: bool = False
    problem: str = ""
    tasks: int = 0
    elsewhere: int = 0
    joined: int = 0
    left: int = 0


class ControlGroup:
    """Creates and fills the control group; off, with the reason in ``problem``, if it cannot.

    :param executor: mounts resctrl, makes the group and writes its tasks; its journal undoes that.
    :param layout: the hierarchy with the cgroups of the workloads.
    """

    def __init__(self, config: ResctrlConfig, executor: Executor, layout: CgroupLayout) -> None:
        self._config = config
        self._executor = executor
        self.facts: ResctrlFacts | None = None
        self.problem = ""
        if config.mount:
            self._mount_resctrl(now_ns=0)
        self._mount = find_mount()
        self._group: Target | None = None
        self._tasks: TaskMover | None = None
        self._group_tasks = GroupTasks(layout)
        self._made_ns: deque[int] = deque(maxlen=_REPAIR_LIMIT + 1)
        self._check_due_ns = 0
        self._read_facts()

    @property
    def state(self) -> GroupState:
        """The present state, for reports."""
        tasks, present = self._group_tasks, self._group is not None
        return GroupState(
            group=self._config.group,
            present=present,
            problem=self.problem,
            tasks=tasks.inside if present else 0,
            elsewhere=tasks.elsewhere if present else 0,
            joined=tasks.joined,
            left=tasks.left,
        )

    def targets(self, *, enforcing: bool) -> tuple[Target, ...]:
        """Return the group whose limits are read for the planner, if there is one.

        In observe mode no group is made: the root group is returned, because its limits are those
        that a new group would have.
        """
        if self._mount is None or self.facts is None:
            return ()
        if self._config.adopted:
            group = self._find(self._config.group)
            self.problem = "" if group else f"no group {self._config.group} to adopt"
            self._group = group
        else:
            group = self._group if enforcing else self._find("")
        return () if group is None else (group,)

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Set the present workloads; tasks of the best-effort ones belong into the group."""
        self._group_tasks.set_workloads(workloads)

    def reconcile(self, now_ns: int, moves: Moves | None) -> bool:
        """Make the group if it is missing and move tasks; to be called in enforce mode only.

        :param moves: the moves since the last tick, ``None`` without a move probe.
        :return: whether ``targets`` changed.
        """
        if not self._config.manage or self._config.adopted:
            return False
        before = self._group
        if now_ns >= self._check_due_ns:
            self._check_due_ns = now_ns + _CHECK_NS
            self._check(now_ns)
        try:
            self._group_tasks.reconcile(self._tasks, now_ns, moves)
        except GoneError:
            self._mark_lost()
        except RefusedError as error:
            self._log_problem(str(error))
        return self._group != before

    def reset(self) -> None:
        """Start over after everything of the agent was undone."""
        self._mark_lost()
        self._made_ns.clear()

    def _check(self, now_ns: int) -> None:
        """Verify that the group exists and is the one that the agent made; make it otherwise."""
        if self._config.mount and find_mount() is None:
            self._mount_resctrl(now_ns)
            self._mount = find_mount()
        if self._mount is None or self.facts is None:
            return
        place = self._place(self._mount)
        found = {reading.value for reading in self._executor.read([place])}
        if self._group is not None and found == {f"{PRESENT} {self._group.id}"}:
            return
        if self._group is not None:
            _log.warning("resctrl group %s was removed by another program", self._config.group)
            self._mark_lost()
        if not self._group_tasks.idle:
            self._make(place, now_ns)

    def _make(self, place: Target, now_ns: int) -> None:
        while self._made_ns and self._made_ns[0] <= now_ns - _REPAIR_WINDOW_NS:
            self._made_ns.popleft()
        if len(self._made_ns) > _REPAIR_LIMIT:
            self._log_problem(f"{place.path} was removed too often by another program: left alone")
            return
        action = Action(
            target=place,
            knob=Knob.RESCTRL_GROUP,
            previous=ABSENT,
            value=PRESENT,
            reason="limits for best-effort work",
        )
        (outcome,) = self._executor.execute([action], now_ns=now_ns)
        if outcome.failure is not None or outcome.applied is None:
            self._log_problem(outcome.message)
        elif outcome.foreign is not None:
            self._log_problem(f"{place.path} was not made by this program: remove it, or adopt it")
        else:
            self.problem = ""
            inode = int(outcome.applied.split()[1])
            self._group = place._replace(id=inode)
            root = self._find("")
            self._tasks = None if root is None else TaskMover(root, self._group)
            self._made_ns.append(now_ns)
            self._group_tasks.reset()
            _log.info("resctrl group %s made", place.path)

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

    def _read_facts(self) -> None:
        if self._mount is None:
            self.problem = self.problem or "resctrl is not mounted"
            return
        try:
            facts = read_info(self._mount).facts
        except (OSError, ValueError) as error:
            self._log_problem(f"{self._mount.point}: {error}")
            return
        if facts.mba_max or facts.llc_ways:
            self.facts = facts if self._config.manage else None
        else:
            self.problem = "this CPU can limit neither memory bandwidth nor cache ways"

    def _place(self, mount: ResctrlMount) -> Target:
        return Target(TargetKind.RESCTRL_GROUP, str(mount.point), 0, self._config.group)

    def _find(self, path: str) -> Target | None:
        assert self._mount is not None
        point = self._mount.point
        try:
            inode = (point / path).stat(follow_symlinks=False).st_ino
        except OSError:
            return None
        return Target(TargetKind.RESCTRL_GROUP, str(point), inode, path)

    def _mark_lost(self) -> None:
        self._group = self._tasks = None
        self._check_due_ns = 0

    def _log_problem(self, problem: str) -> None:
        if problem != self.problem:
            _log.warning("resctrl: %s", problem)
        self.problem = problem
