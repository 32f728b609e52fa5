# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which tasks are in a control group of ours, and moving them there from the root group.

Nobody needs a journal for them: they come from the root group and nowhere else, and removing
the group puts them back there. A task in any other group was put there by somebody else, a
container runtime for one, and stays. A child starts in its parent's group.

Putting tasks into a monitoring group of ours, and back.

Nobody needs a journal for them: they come from the control group that the monitoring group is
in, keep its limits all the time, and fall back to its own monitor when the group is removed.
"""

from collections.abc import Collection, Iterable
import errno
from pathlib import Path
from typing import NamedTuple

from actuators.base import RefusedError
from actuators.resctrl.fs import PREFIX, Group, monitored_by_others
from actuators.tasks import is_kernel_thread
from controller.core.model import Target

__all__ = (
    "MoveCounts",
    "TaskMover",
    "TaskSets",
    "put",
)

# The kernel takes one page per write; seven digits and a comma fit 500 times.
_TIDS_PER_WRITE = 500


class TaskSets(NamedTuple):
    """The tasks of our group, and those of the root group that nobody else watches."""

    ours: frozenset[int]
    root: frozenset[int]


class MoveCounts(NamedTuple):
    """How many were moved, and how many are inside now.

    ``elsewhere`` are in groups of others and stay there.
    """

    inside: int
    joined: int
    left: int
    elsewhere: frozenset[int]


class TaskMover:
    """The tasks of one control group of ours.

    :param root: the root group.
    :param group: the control group.
    """

    def __init__(self, root: Target, group: Target) -> None:
        self._root = root
        self._group = group
        self._lists = True

    def poll(self) -> TaskSets:
        """Return who is where now. Look here before listing who should be in the group.

        :raises GoneError: the group was removed.
        :raises RefusedError: the kernel does not tell.
        """
        with Group(self._group) as group, Group(self._root) as root:
            ours = _tids(group.read("tasks"))
            others = monitored_by_others(Path(self._root.scope))
            return TaskSets(ours, _tids(root.read("tasks")) - others)

    def reconcile(
        self, sight: TaskSets, wanted: Collection[int], leavers: Collection[int]
    ) -> MoveCounts:
        """Move those of *wanted* that are in the root group, and of *leavers* that are in ours.

        Who ended meanwhile is passed over. Errors as ``look``.
        """
        joining = [tid for tid in wanted if tid in sight.root and _may_move(tid)]
        leaving = [tid for tid in leavers if tid in sight.ours]
        with Group(self._group) as group, Group(self._root) as root:
            joined, left = self.write(group, joining), self.write(root, leaving)
        here = sight.root | sight.ours
        return MoveCounts(
            inside=len(sight.ours) + joined - left,
            joined=joined,
            left=left,
            elsewhere=frozenset(t for t in wanted if t not in here and self._is_elsewhere(t)),
        )

    def _is_elsewhere(self, tid: int) -> bool:
        # It may also have been born after we looked.
        try:
            text = Path(f"/proc/{tid}/cpu_resctrl_groups").read_text(encoding="ascii")
        except OSError:
            return False
        group, monitored = (line.partition(":")[2] for line in text.splitlines()[:2])
        if group == "/":
            return monitored != "" and not monitored.startswith(PREFIX)
        return group != self._group.path

    def write(self, group: Group, tids: list[int]) -> int:
        """Move tasks into *group* and return how many of them were still alive.

        :raises RefusedError: one of them may not be moved; those before it have been.
        """
        size = _TIDS_PER_WRITE if self._lists else 1
        chunks = (tids[start : start + size] for start in range(0, len(tids), size))
        return sum(self._write_chunk(group, chunk) for chunk in chunks)

    def _write_chunk(self, group: Group, tids: list[int]) -> int:
        # Returns how many were taken. A dead task in a list is ESRCH, and those before it have
        # been moved then; older kernels know no lists (EINVAL): both go on one by one.
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
    # The kernel would take both.
    return tid != 1 and not is_kernel_thread(tid)


def _tids(text: str) -> frozenset[int]:
    return frozenset(map(int, text.split()))


def put(group: Target, tids: Iterable[int]) -> frozenset[int]:
    """Put *tids* into *group*, one by one, and return those that were alive and taken.

    :raises GoneError: the group was removed.
    :raises RefusedError: the kernel does not take one of them.
    """
    taken: set[int] = set()
    with Group(group) as opened:
        for tid in tids:
            if tid == 1 or is_kernel_thread(tid):  # the kernel would take both
                continue
            try:
                opened.write("tasks", str(tid))
            except RefusedError as error:
                if error.errno != errno.ESRCH:
                    raise
            else:
                taken.add(tid)
    return frozenset(taken)
