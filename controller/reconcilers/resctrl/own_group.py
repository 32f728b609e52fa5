# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A resctrl control group that the agent makes, keeps and fills with the tasks of workloads."""

from collections import deque
from collections.abc import Iterable
import logging
from pathlib import Path

from actuators.base import GoneError, RefusedError
from actuators.executor import Executor
from actuators.resctrl.objects import ABSENT, PRESENT
from actuators.resctrl.tasks import TaskMover
from controller.core.decision import Action
from controller.core.model import Knob, Target, TargetKind, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.probes.cgroup_moves import Move, Moves
from controller.reconcilers.resctrl.group_tasks import GroupTasks

__all__ = ("OwnGroup", "Repairs", "find_group")

_log = logging.getLogger(__name__)

_CHECK_NS = 5 * NS_PER_SEC
# How often what another program removed or changed is made again within the window.
_REPAIR_LIMIT = 3
_REPAIR_WINDOW_NS = 600 * NS_PER_SEC


class Repairs:
    """Bounds how often the agent makes something that another program undoes: once, and 3 times
    more within ten minutes.
    """

    def __init__(self) -> None:
        self._made_ns: deque[int] = deque(maxlen=_REPAIR_LIMIT + 1)

    def allow(self, now_ns: int) -> bool:
        """Return whether it may be made now."""
        while self._made_ns and self._made_ns[0] <= now_ns - _REPAIR_WINDOW_NS:
            self._made_ns.popleft()
        return len(self._made_ns) <= _REPAIR_LIMIT

    def note(self, now_ns: int) -> None:
        """Note that it was made."""
        self._made_ns.append(now_ns)

    def reset(self) -> None:
        """Forget the past."""
        self._made_ns.clear()


class OwnGroup:
    """One control group. Without tasks that belong in it, it is not made.

    ``group`` is the group while it exists, ``tasks`` its tasks, ``problem`` the reason why it does
    not exist; empty: it does, or nothing belongs in it.

    :param executor: makes the group; its journal undoes that.
    :param layout: the hierarchy with the cgroups of the workloads.
    """

    def __init__(self, name: str, reason: str, executor: Executor, layout: CgroupLayout) -> None:
        self.name = name
        self._reason = reason
        self._executor = executor
        self.group: Target | None = None
        self.tasks = GroupTasks(layout)
        self.problem = ""
        self._mover: TaskMover | None = None
        self._repairs = Repairs()
        self._check_due_ns = 0

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Set the workloads whose tasks belong into the group."""
        was_idle = self.tasks.idle
        self.tasks.set_workloads(workloads)
        if was_idle and not self.tasks.idle:
            self._check_due_ns = 0

    def check(self, mount: Path, now_ns: int) -> bool:
        """Every 5 s make the group if it is missing; return whether it was looked at now.

        It is missing too if another program made one of its name.
        """
        if now_ns < self._check_due_ns:
            return False
        self._check_due_ns = now_ns + _CHECK_NS
        place = Target(TargetKind.RESCTRL_GROUP, str(mount), 0, self.name)
        found = {reading.value for reading in self._executor.read([place])}
        if self.group is not None and found == {f"{PRESENT} {self.group.id}"}:
            return True
        if self.group is not None:
            _log.warning("resctrl group %s was removed by another program", self.name)
            self._mark_lost()
        if not self.tasks.idle:
            self._make(place, now_ns)
        return True

    def move(self, now_ns: int, moves: Moves | None, arrived: Iterable[Move]) -> None:
        """Move the tasks that are in the wrong group.

        :param moves: the moves since the last tick, ``None`` without a move probe.
        :param arrived: tasks that begin to run in a cgroup of a workload.
        """
        try:
            self.tasks.reconcile(self._mover, now_ns, moves, arrived)
        except GoneError:
            self._mark_lost()
        except RefusedError as error:
            self.log_problem(str(error))

    def reset(self) -> None:
        """Start over after everything of the agent was undone."""
        self._mark_lost()
        self._repairs.reset()

    def log_problem(self, problem: str) -> None:
        """Set *problem*, and log it if it is another one than before."""
        if problem and problem != self.problem:
            _log.warning("resctrl: %s", problem)
        self.problem = problem

    def _make(self, place: Target, now_ns: int) -> None:
        if not self._repairs.allow(now_ns):
            self.log_problem(f"{place.path} was removed too often by another program: left alone")
            return
        action = Action(
            target=place,
            knob=Knob.RESCTRL_GROUP,
            previous=ABSENT,
            value=PRESENT,
            reason=self._reason,
        )
        (outcome,) = self._executor.execute([action], now_ns=now_ns)
        if outcome.failure is not None or outcome.applied is None:
            self.log_problem(outcome.message)
            return
        if outcome.foreign is not None:
            self.log_problem(f"{place.path} was not made by this program: remove it, or adopt it")
            return
        self.log_problem("")
        inode = int(outcome.applied.split()[1])
        self.group = place._replace(id=inode)
        root = find_group(Path(place.scope), "")
        self._mover = None if root is None else TaskMover(root, self.group)
        self._repairs.note(now_ns)
        self.tasks.reset()
        _log.info("resctrl group %s made", place.path)

    def _mark_lost(self) -> None:
        self.group = self._mover = None
        self._check_due_ns = 0


def find_group(point: Path, path: str) -> Target | None:
    """Return the group at *path* below the mount *point*, of any program, if it exists."""
    try:
        inode = (point / path).stat(follow_symlinks=False).st_ino
    except OSError:
        return None
    return Target(TargetKind.RESCTRL_GROUP, str(point), inode, path)
