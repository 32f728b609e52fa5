# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Cgroups of a test that are assigned to a sched probe."""

from collections.abc import Iterable
from pathlib import Path
import time

from controller.core.model import CgroupId, WorkloadSample
from controller.host.facts import CgroupLayout
from controller.probes.sched import SchedProbe, SchedReading
from tests.kernel.loads import Running
from tests.kernel.steal import Steal

__all__ = ("QUIET_NS", "Groups")

QUIET_NS = 2_000_000  # CPU time of a load at its gate, before and after its work
LONGEST_SLICE_NS = 4_000_000


class Groups:
    """Makes cgroups below *root* and compares the probe's figures with the kernel's."""

    def __init__(self, root: Path, layout: CgroupLayout, probe: SchedProbe) -> None:
        self._root, self._layout, self._probe = root, layout, probe

    def make(self, name: str, *, latency: bool | None = None) -> Path:
        """Make the cgroup *name* and, unless *latency* is ``None``, assign it to the probe."""
        path = self._root / name
        path.mkdir(parents=True)
        if latency is not None:
            self.assign(path, latency=latency)
        return path

    def assign(self, path: Path, *, latency: bool) -> None:
        """Assign the cgroup *path*, which exists already, to the probe."""
        assert self._probe.assign(self.id(path), latency=latency, now_ns=time.monotonic_ns())

    def id(self, path: Path) -> CgroupId:
        return CgroupId(self._layout.hierarchy, path.stat().st_ino)

    def sample(self, reading: SchedReading, path: Path) -> WorkloadSample:
        return next(w for w in reading.workloads if w.cgroup == self.id(path))

    def assert_agree(self, probe: SchedProbe, running: Running, cgroups: Iterable[Path]) -> None:
        """Let *running* work; assert that probe and kernel agree within one percent."""
        cgroups = tuple(cgroups)
        steal = Steal()
        before, first = [running.schedstat(path) for path in cgroups], probe.poll()
        running.work()
        after, last = [running.schedstat(path) for path in cgroups], probe.poll()
        # Zero on a host without missed switches, see docs/ARCHITECTURE.md.
        lost_ns = (last.missed_switches - first.missed_switches) * LONGEST_SLICE_NS
        for path, then, now in zip(cgroups, before, after, strict=True):
            old, new = self.sample(first, path), self.sample(last, path)
            assert old.wait_total_ns is not None and new.wait_total_ns is not None
            assert old.oncpu_ns is not None and new.oncpu_ns is not None
            ran_ns, waited_ns = now.oncpu_ns - then.oncpu_ns, now.wait_ns - then.wait_ns
            seen_ns = new.wait_total_ns - old.wait_total_ns
            print(f"{path.name}: {seen_ns / waited_ns - 1:+.4%} of {waited_ns / 1e9:.3f} s")
            counted_ns = new.oncpu_ns - old.oncpu_ns
            steal.assert_equal(counted_ns, ran_ns, rel=0.01, spare_ns=QUIET_NS)
            assert seen_ns <= 1.01 * waited_ns + QUIET_NS
            assert seen_ns >= 0.99 * waited_ns - QUIET_NS - lost_ns

    def blame(self, reading: SchedReading, victim: Path, culprit: Path) -> int:
        pair = self.id(victim), self.id(culprit)
        return sum(b.wait_ns for b in reading.blame if (b.victim, b.culprit) == pair)
