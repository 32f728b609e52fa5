# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Tasks of resctrl groups: moving them into groups of ours, and back.

Tasks need no journal. Those of a control group of ours come from the root group, or from another
such group, and return to the root group when the group is removed. Those of a monitoring group come
from the control group that contains it; they keep the limits of that control group throughout, and
return to its own monitor when the monitoring group is removed.

A task in a group of another program (for example a container runtime) is not moved. A child starts
in the groups of its parent.
"""

from collections.abc import Collection, Iterable
import errno
from pathlib import Path
from typing import NamedTuple

from actuators.base import RefusedError
from actuators.resctrl.fs import PREFIX, Group, monitored_by_others, tasks_of_ours
from actuators.tasks import is_kernel_thread
from controller.core.model import Target

__all__ = (
    "MoveCounts",
    "TaskMover",
    "TaskSets",
    "put",
)

# The kernel accepts one page per write; 500 ids of seven digits and a comma fit into a page.
_TIDS_PER_WRITE = 500


class TaskSets(NamedTuple):
    """Tasks of our group, and those that may join it: of other control groups of ours, and of the
    root group without a monitor of another program.
    """

    ours: frozenset[int]
    others: frozenset[int]


class MoveCounts(NamedTuple):
    """Result of ``TaskMover.reconcile``, in tasks.

    ``inside`` are in our group now; ``joined`` and ``left`` were moved in and out. ``elsewhere``
    has the wanted tasks that are in groups of other programs and stay there.
    """

    inside: int
    joined: int
    left: int
    elsewhere: frozenset[int]


class TaskMover:
    """Moves tasks into one control group of ours, and out of it into the root group.

    ``poll`` reads which tasks are in our groups and in the root group; ``reconcile`` moves the
    difference to the tasks that are wanted in our group. Both work on thread ids.

    :param root: the root group.
    :param group: the control group of ours.
    """

    def __init__(self, root: Target, group: Target) -> None:
        self._root = root
        self._group = group
        self._lists = True  # whether the kernel accepts a list of ids in one write

    def poll(self) -> TaskSets:
        """Return the tasks of the groups.

        Call this before enumerating the wanted tasks: a task that starts in between is then not
        mistaken for one in a group of another program.

        :raises GoneError: the group was removed.
        :raises RefusedError: the groups cannot be read.
        """
        with Group(self._group) as group, Group(self._root) as root:
            ours = _tids(group.read("tasks"))
            mount = Path(self._root.scope)
            free = _tids(root.read("tasks")) - monitored_by_others(mount)
            return TaskSets(ours, free | tasks_of_ours(mount, besides=self._group.path))

    def reconcile(
        self, current: TaskSets, wanted: Collection[int], leavers: Collection[int]
    ) -> MoveCounts:
        """Move tasks of *wanted* into our group, and *leavers* from it into the root group.

        Tasks that have ended meanwhile are skipped. Errors as ``poll``.

        :param current: the result of ``poll``.
        """
        joining = [tid for tid in wanted if tid in current.others and _may_move(tid)]
        leaving = [tid for tid in leavers if tid in current.ours]
        with Group(self._group) as group, Group(self._root) as root:
            joined, left = self.write(group, joining), self.write(root, leaving)
        known = current.others | current.ours
        return MoveCounts(
            inside=len(current.ours) + joined - left,
            joined=joined,
            left=left,
            elsewhere=frozenset(t for t in wanted if t not in known and self._is_elsewhere(t)),
        )

    def _is_elsewhere(self, tid: int) -> bool:
        # A task outside the polled sets may also have started after the poll.
        try:
            text = Path(f"/proc/{tid}/cpu_resctrl_groups").read_text(encoding="ascii")
        except OSError:
            return False
        group, monitored = (line.partition(":")[2] for line in text.splitlines()[:2])
        if group == "/":
            return monitored != "" and not monitored.startswith(PREFIX)
        return group != self._group.path

    def write(self, group: Group, tids: list[int]) -> int:
        """Move tasks into *group* and return the number of those that still existed.

        :raises RefusedError: a task may not be moved; those before it in *tids* have been moved.
        """
        size = _TIDS_PER_WRITE if self._lists else 1
        chunks = (tids[start : start + size] for start in range(0, len(tids), size))
        return sum(self._write_chunk(group, chunk) for chunk in chunks)

    def _write_chunk(self, group: Group, tids: list[int]) -> int:
        # Returns the number of tasks moved. In a list an ended task causes ESRCH after those before
        # it were moved; older kernels refuse lists (EINVAL). Both continue with single ids.
        try:
            group.write("tasks", ",".join(map(str, tids)))
        except RefusedError as error:
            if len(tids) > 1 and error.errno in (errno.ESRCH, errno.EINVAL):
                self._lists = error.errno == errno.ESRCH
                return sum(self._write_chunk(group, [tid]) for tid in tids)
            if error.errno != errno.ESRCH:
                raise
            return 0
        return len(tids)


def _may_move(tid: int) -> bool:
    # The kernel would accept the init process and kernel threads as well.
    return tid != 1 and not is_kernel_thread(tid)


def _tids(text: str) -> frozenset[int]:
    return frozenset(map(int, text.split()))


def put(group: Target, tids: Iterable[int]) -> frozenset[int]:
    """Move *tids* into *group* one by one; return those that existed and were moved.

    The init process and kernel threads are skipped.

    :raises GoneError: the group was removed.
    :raises RefusedError: a task may not be moved.
    """
    taken: set[int] = set()
    with Group(group) as opened:
        for tid in tids:
            if not _may_move(tid):
                continue
            try:
                opened.write("tasks", str(tid))
            except RefusedError as error:
                if error.errno != errno.ESRCH:
                    raise
            else:
                taken.add(tid)
    return frozenset(taken)
