# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The tasks of a resctrl control group of the agent: those of the workloads that belong in it.

A task starts in the resctrl group of its parent, so most tasks that are forked in a cgroup of such
a workload are in the group. A task that is moved into such a cgroup, or created in it from outside,
is not in the group, and a task that is moved out stays in it. Both are moved here.
"""

from collections.abc import Collection, Iterable
import logging
from pathlib import Path

from actuators.resctrl.tasks import MoveCounts, TaskMover
from actuators.tasks import members, threads
from controller.core.model import CgroupId, Target, TargetKind, Workload
from controller.host.facts import CgroupLayout
from controller.probes.cgroup_moves import Move, Moves
from controller.reconcilers.task_scan import TaskScan
from controller.workloads.changes import diff_workloads

__all__ = ("GroupTasks",)

_log = logging.getLogger(__name__)

# Tasks that are forked while others are being moved are found by the next pass.
_MAX_PASSES = 5


class GroupTasks:
    """Moves tasks between a control group and the others of the agent, or the root group.

    ``inside`` is the number of tasks in the group after the last pass. ``elsewhere`` is the number
    of tasks of its workloads in groups of other programs, where they stay. ``joined`` and
    ``left`` count the tasks that were moved into and out of the group.

    :param layout: the hierarchy with the cgroups of the workloads.
    """

    def __init__(self, layout: CgroupLayout) -> None:
        self._layout = layout
        self._workloads: tuple[Workload, ...] = ()
        self._members: dict[CgroupId, tuple[Target, str]] = {}
        self._scan = TaskScan()
        self.inside = self.elsewhere = 0
        self.joined = self.left = 0

    @property
    def idle(self) -> bool:
        """Whether no workload belongs in the group."""
        return not self._members

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Set the workloads whose tasks belong into the group."""
        before, self._workloads = self._workloads, tuple(workloads)
        change = diff_workloads(before, self._workloads).by_fields("cgroup", "path", "name")
        for each in change.removed:
            del self._members[each.cgroup]
        for each in change.added:
            target = Target(TargetKind.CGROUP, *each.cgroup, each.path)
            self._members[each.cgroup] = target, each.name
        if change.added or change.removed:
            self._scan.request()

    def reset(self) -> None:
        """Scan all tasks in the next tick, because the group is new."""
        self._scan.reset()
        self.inside = self.elsewhere = 0

    def reconcile(
        self,
        tasks: TaskMover | None,
        now_ns: int,
        moves: Moves | None,
        arrived: Iterable[Move] = (),
    ) -> None:
        """Move the tasks that are in the wrong group.

        :param tasks: the tasks of the group, ``None`` while the group does not exist.
        :param moves: the moves since the last tick, ``None`` without a move probe.
        :param arrived: tasks that begin to run in the cgroup of a workload.
        :raises GoneError: the group was removed.
        :raises RefusedError: the kernel refused to read or write the tasks.
        """
        self._scan.update(moves)
        self._scan.moves.extend(arrived)
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
            wanted = {tid for tid, _ in members(mount, version, self._members.values())}
            counts = tasks.reconcile(found, wanted, found.ours - wanted)
            self._count(counts)
            if len(counts.elsewhere) > self.elsewhere:
                _log_elsewhere(counts.elsewhere)
            self.elsewhere = len(counts.elsewhere)
            if not counts.joined:
                return

    def _reconcile_moved(self, tasks: TaskMover, moves: Iterable[Move]) -> None:
        # Of several moves of a task the last one counts: it has the present cgroup.
        belongs: dict[int, bool] = {}
        for move in moves:
            for tid in (move.tid, *threads(move.tgid if move.whole else move.tid)):
                belongs[tid] = move.cgroup in self._members
        found = tasks.poll()
        joining = [tid for tid, inside in belongs.items() if inside]
        leaving = [tid for tid, inside in belongs.items() if not inside]
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
        "%d tasks of workloads are in resctrl groups of other programs and stay there "
        "(task %d: %s); with resctrl.adopt best-effort work is limited by such a group",
        len(elsewhere),
        tid,
        text.partition("\n")[0],
    )
