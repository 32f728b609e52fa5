# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The resctrl control group of best-effort work: made, filled, and told of.

A group takes one of the few CLOSIDs, so there is one for all best-effort work. In a group that
the configuration adopts nobody is moved: who made it says who runs in it.
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
# Somebody removes our group: it is made again that often in that time.
_AGAIN_LIMIT = 3
_AGAIN_WINDOW_NS = 600 * NS_PER_SEC


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """The resctrl control group of best-effort work; ``problem`` says why it is not there.

    ``tasks`` are in it; ``elsewhere`` are tasks of best-effort work that somebody else put into
    another group. ``joined`` and ``left`` count tasks that were moved since the start.
    """

    group: str = ""
    present: bool = False
    problem: str = ""
    tasks: int = 0
    elsewhere: int = 0
    joined: int = 0
    left: int = 0


class ControlGroup:
    """resctrl for the node; switched off with the reason in ``problem`` if it cannot be used.

    :param executor: mounts, makes and sets; its journal undoes all of that.
    :param layout: where the cgroups of the workloads are.
    """

    def __init__(self, config: ResctrlConfig, executor: Executor, layout: CgroupLayout) -> None:
        self._config = config
        self._executor = executor
        self.facts: ResctrlFacts | None = None
        self.problem = ""
        if config.mount:
            self._mount_it(now_ns=0)
        self._mount = find_mount()
        self._group: Target | None = None
        self._tasks: TaskMover | None = None
        self._keeper = GroupTasks(layout)
        self._made_ns: deque[int] = deque(maxlen=_AGAIN_LIMIT + 1)
        self._check_due_ns = 0
        self._read_facts()

    @property
    def state(self) -> GroupState:
        """What there is now."""
        keeper, present = self._keeper, self._group is not None
        return GroupState(
            group=self._config.group,
            present=present,
            problem=self.problem,
            tasks=keeper.inside if present else 0,
            elsewhere=keeper.elsewhere if present else 0,
            joined=keeper.joined,
            left=keeper.left,
        )

    def targets(self, *, enforcing: bool) -> tuple[Target, ...]:
        """Return the group whose values the planner is to see.

        When only observing, there is no group: then it is the root group, which has the values
        that a new one would have.
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
        """Keep the tasks of the best-effort ones of *workloads* in the group from now on."""
        self._keeper.set_workloads(workloads)

    def reconcile(self, now_ns: int, moves: Moves | None) -> bool:
        """Make the group if it is not there and settle who came and went; only when enforcing.

        :param moves: as told by the members probe, ``None`` without one.
        :return: whether ``targets`` are others now.
        """
        if not self._config.manage or self._config.adopted:
            return False
        before = self._group
        if now_ns >= self._check_due_ns:
            self._check_due_ns = now_ns + _CHECK_NS
            self._check(now_ns)
        try:
            self._keeper.reconcile(self._tasks, now_ns, moves)
        except GoneError:
            self._mark_lost()
        except RefusedError as error:
            self._log_problem(str(error))
        return self._group != before

    def reset(self) -> None:
        """Take note that everything of ours was undone."""
        self._mark_lost()
        self._made_ns.clear()

    def _check(self, now_ns: int) -> None:
        """See that the group is there, and is the one that we made."""
        if self._config.mount and find_mount() is None:
            self._mount_it(now_ns)
            self._mount = find_mount()
        if self._mount is None or self.facts is None:
            return
        place = self._place(self._mount)
        found = {reading.value for reading in self._executor.read([place])}
        if self._group is not None and found == {f"{PRESENT} {self._group.id}"}:
            return
        if self._group is not None:
            _log.warning("resctrl group %s: somebody removed it", self._config.group)
            self._mark_lost()
        if not self._keeper.idle:
            self._make(place, now_ns)

    def _make(self, place: Target, now_ns: int) -> None:
        while self._made_ns and self._made_ns[0] <= now_ns - _AGAIN_WINDOW_NS:
            self._made_ns.popleft()
        if len(self._made_ns) > _AGAIN_LIMIT:
            self._log_problem(f"{place.path} was removed by somebody else too often: left alone")
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
            self._keeper.start()
            _log.info("resctrl group %s made", place.path)

    def _mount_it(self, now_ns: int) -> None:
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
