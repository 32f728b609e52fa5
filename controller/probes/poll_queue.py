# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whose files to read next: those of who moved at once, those of everybody else in turn.

Who stands still neither stalls nor uses anything new. But he may be stuck: a task that waits for a
disk does not run, and its pressure grows all the same. So who moved is looked at once more in the
next round, and again as long as what his files tell changes; and a tenth of everybody in each
round, for what no other counter gives away.
"""

from collections.abc import Iterable
import math

from controller.core.model import CgroupId

__all__ = ("PollQueue",)

_ROUNDS = 10


class PollQueue:
    """Collects who moved, and deals out rounds; how long one lasts is up to who reads."""

    def __init__(self) -> None:
        self._everybody: dict[CgroupId, None] = {}
        self._turn: list[CgroupId] = []
        self._moved: dict[CgroupId, None] = {}
        self._moved_before: dict[CgroupId, None] = {}

    def set_cgroups(self, cgroups: Iterable[CgroupId]) -> None:
        """Deal out these from now on, and no others; the new ones with the next round."""
        before, self._everybody = self._everybody, dict.fromkeys(cgroups)
        self._turn = [cgroup for cgroup in self._turn if cgroup in self._everybody]
        self.mark_active(cgroup for cgroup in self._everybody if cgroup not in before)

    def mark_active(self, cgroups: Iterable[CgroupId] | None) -> None:
        """Take note of who moved, or whose files told something new; ``None``: nobody knows."""
        self._moved |= self._everybody if cgroups is None else dict.fromkeys(cgroups)

    def due(self) -> list[CgroupId]:
        """Return whose files to read in this round."""
        moved, self._moved = self._moved, {}
        due = moved | self._moved_before | dict.fromkeys(self._due_in_turn())
        self._moved_before = moved
        return [cgroup for cgroup in due if cgroup in self._everybody]

    def _due_in_turn(self) -> list[CgroupId]:
        count = math.ceil(len(self._everybody) / _ROUNDS)
        if len(self._turn) < count:
            self._turn = [*reversed(self._everybody), *self._turn]
        return [self._turn.pop() for _ in range(count)]
