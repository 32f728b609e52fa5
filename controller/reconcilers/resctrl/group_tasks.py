# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the tasks of best-effort work in its resctrl group, and others out of it.

A child starts in its parent's group, so most of what is born into a best-effort cgroup is
there. What is moved there, or made there from outside, is not; what leaves stays in ours.
"""

from collections.abc import Collection, Iterable
import logging
from pathlib import Path

from actuators.resctrl.tasks import MoveCounts, TaskMover
from actuators.tasks import members, threads
from controller.core.model import CgroupId, QosClass, Target, TargetKind, Workload
from controller.core.workload_index import diff_workloads
from controller.host.facts import CgroupLayout
from controller.probes.cgroup_moves import Move, Moves
from controller.reconcilers.task_scan import TaskScan

__all__ = ("GroupTasks",)

_log = logging.getLogger(__name__)

# Tasks that start while others are being moved are found by the next look.
_LOOKS = 5


class GroupTasks:
    """Moves tasks between the root group and the group of best-effort work.

    ``inside`` is how many were in the group after the last look, ``elsewhere`` how many tasks
    of best-effort work somebody else had put into another group; ``joined`` and ``left`` count
    those that were moved.

    :param layout: where the cgroups of the workloads are.
    """

    def __init__(self, layout: CgroupLayout) -> None:
        self._layout = layout
        self._followed: tuple[Workload, ...] = ()
        self._workloads: dict[CgroupId, tuple[Target, str]] = {}  # the best-effort ones
        self._scan = TaskScan()
        self.inside = self.elsewhere = 0
        self.joined = self.left = 0

    @property
    def idle(self) -> bool:
        """Whether there is nobody to keep."""
        return not self._workloads

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Keep the best-effort ones of *workloads* from now on."""
        before, self._followed = self._followed, tuple(workloads)
        change = (
            diff_workloads(before, self._followed)
            .of_class(QosClass.BE)
            .by_fields("cgroup", "path", "name")
        )
        for each in change.removed:
            del self._workloads[each.cgroup]
        for each in change.added:
            target = Target(TargetKind.CGROUP, *each.cgroup, each.path)
            self._workloads[each.cgroup] = target, each.name
        if change.added or change.removed:
            self._scan.request()

    def start(self) -> None:
        """The group is new: look at all tasks next time."""
        self._scan.reset()
        self.inside = self.elsewhere = 0

    def reconcile(self, tasks: TaskMover | None, now_ns: int, moves: Moves | None) -> None:
        """Settle who came and went since the last tick.

        :param tasks: the group; ``None``: there is none now.
        :param moves: as told by the members probe, ``None`` without one.
        :raises GoneError: the group was removed.
        :raises RefusedError: the kernel does not want to.
        """
        self._scan.update(moves)
        if tasks is None:
            self._scan.take_moves()
        elif self._scan.due(now_ns):
            self._scan.begin(now_ns)
            self._reconcile_all(tasks)
        elif self._scan.moves:
            self._reconcile_moved(tasks, self._scan.take_moves())

    def _reconcile_all(self, tasks: TaskMover) -> None:
        mount, version = self._layout.mount, self._layout.version
        for _ in range(_LOOKS):
            sight = tasks.poll()
            wanted = {tid for tid, _ in members(mount, version, self._workloads.values())}
            done = tasks.reconcile(sight, wanted, sight.ours - wanted)
            self._count(done)
            if len(done.elsewhere) > self.elsewhere:
                _report(done.elsewhere)
            self.elsewhere = len(done.elsewhere)
            if not done.joined:
                return

    def _reconcile_moved(self, tasks: TaskMover, moved: Iterable[Move]) -> None:
        # The last move of a task is where it is.
        ours: dict[int, bool] = {}
        for move in moved:
            for tid in (move.tid, *threads(move.tgid if move.whole else move.tid)):
                ours[tid] = move.cgroup in self._workloads
        sight = tasks.poll()
        joining = [tid for tid, best_effort in ours.items() if best_effort]
        leaving = [tid for tid, best_effort in ours.items() if not best_effort]
        self._count(tasks.reconcile(sight, joining, leaving))

    def _count(self, done: MoveCounts) -> None:
        self.inside = done.inside
        self.joined += done.joined
        self.left += done.left


def _report(elsewhere: Collection[int]) -> None:
    tid = min(elsewhere)
    try:
        text = Path(f"/proc/{tid}/cpu_resctrl_groups").read_text(encoding="utf-8")
    except OSError:
        return
    _log.warning(
        "%d tasks of best-effort work are in resctrl groups of others and stay there (%d: %s); "
        "with resctrl.adopt the limits of such a group are moved instead",
        len(elsewhere),
        tid,
        text.partition("\n")[0],
    )
