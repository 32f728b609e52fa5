# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Schedule of cgroup files to read: active cgroups at once, all others in rotation.

A workload that did not run normally has no new pressure or usage. The exception is a stuck one: a
task that waits for a disk does not run, yet its pressure grows. So an active cgroup is read once
more in the next round, and again as long as its files change. In addition a tenth of all cgroups
is read in each round, for changes that no other counter shows.
"""

from collections.abc import Iterable
import math

from controller.core.model import CgroupId

__all__ = ("PollQueue",)

_ROTATION_ROUNDS = 10


class PollQueue:
    """Collects active cgroups and returns the cgroups of a round; the caller times the rounds."""

    def __init__(self) -> None:
        self._cgroups: dict[CgroupId, None] = {}
        self._rotation: list[CgroupId] = []
        self._active: dict[CgroupId, None] = {}
        self._active_before: dict[CgroupId, None] = {}

    def set_cgroups(self, cgroups: Iterable[CgroupId]) -> None:
        """Schedule *cgroups* and no others from now on; new ones are due in the next round."""
        before, self._cgroups = self._cgroups, dict.fromkeys(cgroups)
        self._rotation = [cgroup for cgroup in self._rotation if cgroup in self._cgroups]
        self.mark_active(cgroup for cgroup in self._cgroups if cgroup not in before)

    def mark_active(self, cgroups: Iterable[CgroupId] | None) -> None:
        """Mark cgroups that were active or whose files changed; ``None``: mark all."""
        self._active |= self._cgroups if cgroups is None else dict.fromkeys(cgroups)

    def due(self) -> list[CgroupId]:
        """Start a round and return the cgroups to read in it."""
        active, self._active = self._active, {}
        due = active | self._active_before | dict.fromkeys(self._next_in_rotation())
        self._active_before = active
        return [cgroup for cgroup in due if cgroup in self._cgroups]

    def _next_in_rotation(self) -> list[CgroupId]:
        count = math.ceil(len(self._cgroups) / _ROTATION_ROUNDS)
        if len(self._rotation) < count:
            self._rotation = [*reversed(self._cgroups), *self._rotation]
        return [self._rotation.pop() for _ in range(count)]
