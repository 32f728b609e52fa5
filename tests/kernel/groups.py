# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Cgroups of a test that are assigned to a sched probe."""

from collections.abc import Callable, Iterable
from pathlib import Path
import time
from typing import NamedTuple

from controller.core.model import CgroupId, WorkloadSample
from controller.host.facts import CgroupLayout
from controller.probes.sched import SchedProbe, SchedReading
from tests.kernel.loads import Load, Running, Schedstat, loads
from tests.support.waiting import DEADLINE_S

__all__ = ("Groups", "Round")

# CPU time of each cgroup in a round, and rounds that are enough to believe a comparison.
RUN_NS, ROUNDS = 10_000_000, 3


class Round(NamedTuple):
    """What loads did between two gates: readings of the probe, and by cgroup the kernel's counts.

    ``missed``: so many times the kernel did not fire the tracepoint of switches on their CPUs. The
    wait before such a switch is not counted, and a run is charged to another task.
    """

    first: SchedReading
    last: SchedReading
    kernel: dict[Path, Schedstat]
    missed: int


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

    def read(self) -> SchedReading:
        """Return the counters as of now, also those that are read once a second."""
        self._probe.counted()
        return self._probe.poll()

    def counted(self, path: Path) -> WorkloadSample:
        """Return the sample of *path* as of now."""
        return self.sample(self.read(), path)

    def gained(self, between: Round, field: str, *cgroups: Path) -> int:
        """Return the sum over *cgroups* of what the counter *field* of the sample grew by."""
        return sum(
            int(getattr(self.sample(between.last, path), field))
            - int(getattr(self.sample(between.first, path), field))
            for path in cgroups
        )

    def waited(self, *paths: Path, least: int) -> Callable[[], bool]:
        """Return a function that tells whether each of *paths* waited *least* times from now on."""
        before = {path: self.counted(path).waits or 0 for path in paths}

        def enough() -> bool:
            reading = self._probe.poll()
            return all(
                (self.sample(reading, path).waits or 0) - waits >= least
                for path, waits in before.items()
            )

        return enough

    def rounds(
        self,
        running: Running,
        cgroups: Iterable[Path],
        judge: Callable[[Round], bool],
        also: Callable[[], bool] = lambda: True,
    ) -> None:
        """Let *running* work in rounds until *judge* has returned true for some of them.

        A round lasts until the kernel counted some CPU time of each of *cgroups*, and *also*.
        """
        cgroups, enough = tuple(cgroups), 0
        stop_s = time.monotonic() + DEADLINE_S
        while enough < ROUNDS:
            assert time.monotonic() < stop_s, "there are missed switches in every round"
            before, first = {path: running.schedstat(path) for path in cgroups}, self.read()
            missed = self._missed(running)

            def ran(before: dict[Path, Schedstat] = before) -> bool:
                gained = (running.schedstat(p).since(then) for p, then in before.items())
                return all(each.oncpu_ns >= RUN_NS for each in gained) and also()

            running.work_until("CPU time", ran)
            missed, last = self._missed(running) - missed, self.read()
            kernel = {path: running.schedstat(path).since(then) for path, then in before.items()}
            enough += judge(Round(first, last, kernel, missed))

    def beside_hog(self, cpu: int, least: int) -> tuple[SchedReading, Path, Path]:
        """Let a service wait beside a hog on *cpu* for *least* times.

        Return the reading then, the service's cgroup and the hog's.
        """
        service, hog = self.make("service", latency=True), self.make("hog", latency=False)
        with loads([Load(service, "bursts", cpu), Load(hog, "hog", cpu)]) as running:
            running.work_until("waits", self.waited(service, least=least))
            reading = self._probe.poll()
        self.assert_complete(reading, service)
        return reading, service, hog

    def _missed(self, running: Running) -> int:
        cpus = {load.cpu for load in running.loads}
        missed = self._probe._cpus.values["missed"]
        return int((missed if -1 in cpus else missed[sorted(cpus)]).sum())

    def saw_all(self, each: Round, at: Path, *counted: Path) -> bool:
        """Return whether the probe saw all switches to the tasks in *at*.

        *counted* are the cgroups that they are charged to; without them *at* itself is.
        """
        return (
            not each.missed
            or self.gained(each, "waits", *(counted or [at])) == each.kernel[at].runs
        )

    def assert_agree(self, running: Running, cgroups: Iterable[Path]) -> None:
        """Let *running* work; assert that the probe counts the waits and runs of the kernel.

        Probe and kernel read the same clock at the same switches, so the waits of pinned tasks are
        equal to the nanosecond. Of others, the part before a migration is missing. Run time has
        what the hypervisor took, which the kernel leaves out, so it is not less than the kernel's.
        """
        cgroups, waits = tuple(cgroups), 0
        pinned = all(load.cpu >= 0 for load in running.loads)

        def judge(each: Round) -> bool:
            nonlocal waits
            for path in cgroups:
                saw_all, kernel = self.saw_all(each, path), each.kernel[path]
                seen_ns = self.gained(each, "wait_total_ns", path)
                assert seen_ns <= kernel.wait_ns
                assert seen_ns == kernel.wait_ns or not (saw_all and pinned)
                assert 0 <= self.gained(each, "waits", path) <= kernel.runs
                assert self.gained(each, "oncpu_ns", path) >= kernel.oncpu_ns or not saw_all
                waits += self.gained(each, "waits", path)
            return all(self.saw_all(each, path) for path in cgroups) or not pinned

        self.rounds(running, cgroups, judge)
        assert waits > 0

    def assert_runs_counted(self, running: Running, at: Path, *counted: Path) -> None:
        """Let *running* work; assert that *counted* get the run time of the loads in *at*.

        Without *counted*, *at* itself gets it.
        """

        def judge(each: Round) -> bool:
            saw_all = self.saw_all(each, at, *counted)
            ran_ns = self.gained(each, "oncpu_ns", *(counted or [at]))
            assert ran_ns >= each.kernel[at].oncpu_ns or not saw_all
            return saw_all

        self.rounds(running, [at], judge)

    def assert_complete(self, reading: SchedReading, service: Path) -> None:
        """Assert that the figures of *service* about its waits are parts of one whole."""
        sample = self.sample(reading, service)
        assert sample.waits is not None and sample.runq_histogram is not None
        assert sample.wait_total_ns is not None and sample.wait_inflicted_ns is not None
        assert sample.throttled_ns is not None and sample.wait_host_ns is not None
        assert sum(sample.runq_histogram) == sample.waits > 0
        parts_ns = sample.wait_inflicted_ns + sample.throttled_ns + sample.wait_host_ns
        assert parts_ns <= sample.wait_total_ns
        blames = [each for each in reading.blame if each.victim == sample.cgroup]
        assert sum(each.wait_ns for each in blames) == sample.wait_inflicted_ns

    def blame(self, reading: SchedReading, victim: Path, culprit: Path) -> int:
        pair = self.id(victim), self.id(culprit)
        return sum(b.wait_ns for b in reading.blame if (b.victim, b.culprit) == pair)
