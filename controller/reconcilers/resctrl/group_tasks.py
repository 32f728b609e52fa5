# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The tasks of the resctrl control group of best-effort work.

A task starts in the resctrl group of its parent, so most tasks that are forked in a best-effort
cgroup are in the group. A task that is moved into such a cgroup, or created in it from outside, is
not in the group, and a task that is moved out stays in it. Both are moved here.
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

# Tasks that are forked while others are being moved are found by the next pass.
_MAX_PASSES = 5


class GroupTasks:
    """Moves tasks between the root group and the control group of best-effort work.

    ``inside`` is the number of tasks in the group after the last pass. ``elsewhere`` is the number
    of tasks of best-effort work in groups of other programs, where they stay. ``joined`` and
    ``left`` count the tasks that were moved into and out of the group.

    :param layout: the hierarchy with the cgroups of the workloads.
    """

    def __init__(self, layout: CgroupLayout) -> None:
        self._layout = layout
        self._workloads: tuple[Workload, ...] = ()
        self._best_effort: dict[CgroupId, tuple[Target, str]] = {}
        self._scan = TaskScan()
        self.inside = self.elsewhere = 0
        self.joined = self.left = 0

    @property
    def idle(self) -> bool:
        """Whether there is no best-effort workload."""
        return not self._best_effort

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Set the present workloads; tasks of the best-effort ones belong into the group."""
        before, self._workloads = self._workloads, tuple(workloads)
        change = (
            diff_workloads(before, self._workloads)
            .of_class(QosClass.BE)
            .by_fields("cgroup", "path", "name")
        )
        for each in change.removed:
            del self._best_effort[each.cgroup]
        for each in change.added:
            target = Target(TargetKind.CGROUP, *each.cgroup, each.path)
            self._best_effort[each.cgroup] = target, each.name
        if change.added or change.removed:
            self._scan.request()

    def reset(self) -> None:
        """Scan all tasks in the next tick, because the group is new."""
        self._scan.reset()
        self.inside = self.elsewhere = 0

    def reconcile(self, tasks: TaskMover | None, now_ns: int, moves: Moves | None) -> None:
        """Move the tasks that are in the wrong group.

        :param tasks: the tasks of the group, ``None`` while the group does not exist.
        :param moves: the moves since the last tick, ``None`` without a move probe.
        :raises GoneError: the group was removed.
        :raises RefusedError: the kernel refused to read or write the tasks.
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
        for _ in range(_MAX_PASSES):
            found = tasks.poll()
            wanted = {tid for tid, _ in members(mount, version, self._best_effort.values())}
            counts = tasks.reconcile(found, wanted, found.ours - wanted)
            self._count(counts)
            if len(counts.elsewhere) > self.elsewhere:
                _log_elsewhere(counts.elsewhere)
            self.elsewhere = len(counts.elsewhere)
            if not counts.joined:
                return

    def _reconcile_moved(self, tasks: TaskMover, moves: Iterable[Move]) -> None:
        # Of several moves of a task the last one counts: it has the present cgroup.
        is_best_effort: dict[int, bool] = {}
        for move in moves:
            for tid in (move.tid, *threads(move.tgid if move.whole else move.tid)):
                is_best_effort[tid] = move.cgroup in self._best_effort
        found = tasks.poll()
        joining = [tid for tid, best_effort in is_best_effort.items() if best_effort]
        leaving = [tid for tid, best_effort in is_best_effort.items() if not best_effort]
        self._count(tasks.reconcile(found, joining, leaving))

    def _count(self, counts: MoveCounts) -> None:
        self.inside = counts.inside
        self.joined += counts.joined
        self.left += counts.left


def _log_elsewhere(elsewhere: Collection[int]) -> None:
    tid = min(elsewhere)
    try:
        text = Path(f"/proc/{tid}/cpu_resctrl_groups").read_text(encoding="utf-8")
    except OSError:
        return
    _log.warning(
        "%d tasks of best-effort work are in resctrl groups of other programs and stay there "
        "(task %d: %s); with resctrl.adopt the limits of such a group are moved instead",
        len(elsewhere),
        tid,
        text.partition("\n")[0],
    )
