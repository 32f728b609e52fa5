# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is new in the samples of a tick.

Of a thousand workloads most stand still, and the probes hand out the very same record for those
as in the tick before. Whoever follows counters looks at the others only.
"""

from collections.abc import Iterable
from itertools import compress
from operator import is_not

from controller.model import CgroupId, WorkloadSample

__all__ = ("Samples",)


class Samples:
    """The samples of the last tick, ``by_cgroup``, and how they differ from those before.

    ``moved`` is (before, now) of those of which anything was counted, ``came`` and ``gone`` who
    was not there before and who is not there any more.
    """

    __slots__ = ("_all", "by_cgroup", "came", "gone", "moved")

    def __init__(self) -> None:
        self._all: tuple[WorkloadSample, ...] = ()
        self.by_cgroup: dict[CgroupId, WorkloadSample] = {}
        self.moved: dict[CgroupId, tuple[WorkloadSample, WorkloadSample]] = {}
        self.came: tuple[CgroupId, ...] = ()
        self.gone: tuple[CgroupId, ...] = ()

    def update(self, samples: Iterable[WorkloadSample]) -> None:
        """Take the samples of one tick, one per cgroup."""
        before, self._all = self._all, tuple(samples)
        pairs = zip(before, self._all, strict=False)
        others = compress(pairs, map(is_not, before, self._all))
        changed = [(old, new) for old, new in others if old != new]
        if len(before) != len(self._all) or any(old[0] != new[0] for old, new in changed):
            self._look_up()
            return
        self.came = self.gone = ()
        self.moved = {pair[1].cgroup: pair for pair in changed}
        for cgroup, (_, new) in self.moved.items():
            self.by_cgroup[cgroup] = new

    def _look_up(self) -> None:
        before, self.by_cgroup = self.by_cgroup, {each.cgroup: each for each in self._all}
        # No sets: the order of what follows must not depend on hash seeds.
        self.came = tuple(cgroup for cgroup in self.by_cgroup if cgroup not in before)
        self.gone = tuple(cgroup for cgroup in before if cgroup not in self.by_cgroup)
        self.moved = {
            cgroup: (old, new)
            for cgroup, new in self.by_cgroup.items()
            if (old := before.get(cgroup)) is not None and old is not new and old != new
        }
