# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Cgroups that the sched probe of a test counts for."""

from pathlib import Path
import time

from controller.host import CgroupLayout
from controller.model import CgroupId, WorkloadSample
from controller.probes.sched import SchedProbe, SchedReading

__all__ = ("Groups",)


class Groups:
    """Cgroups below the test's own, by name."""

    def __init__(self, root: Path, layout: CgroupLayout, probe: SchedProbe) -> None:
        self._root, self._layout, self._probe = root, layout, probe

    def make(self, name: str, *, latency: bool | None = None) -> Path:
        """Make the cgroup *name* and, unless *latency* is None, assign it to the probe."""
        path = self._root / name
        path.mkdir(parents=True)
        if latency is not None:
            assert self._probe.assign(self.id(path), latency=latency, now_ns=time.monotonic_ns())
        return path

    def id(self, path: Path) -> CgroupId:
        return CgroupId(self._layout.hierarchy, path.stat().st_ino)

    def sample(self, reading: SchedReading, path: Path) -> WorkloadSample:
        return next(w for w in reading.workloads if w.cgroup == self.id(path))

    def blame(self, reading: SchedReading, victim: Path, culprit: Path) -> int:
        pair = self.id(victim), self.id(culprit)
        return sum(b.wait_ns for b in reading.blame if (b.victim, b.culprit) == pair)
