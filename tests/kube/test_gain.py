# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a service on a node with kubelet gains from the agent, next to kubelet's weights alone.

kubelet, containerd and runc make the pods. The test starts the programs of service and job in the
cgroups of their containers, so that load, clients and accounts are those of ``make compare``.
``SWEETPOINT_GAIN_ROUNDS`` is the number of blocks of each arm, 5 by default.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
from dataclasses import dataclass
from functools import partial
import os
from pathlib import Path
import random
import shutil
import tempfile
import time

import numpy as np
import pytest

from controller.core.units import NS_PER_SEC
from controller.demo.programs import Process, start
from controller.trial.interval import Interval, ratio_interval
from tests.compare.blocks import window_p99_ms
from tests.compare.jobs import JOBS
from tests.compare.plan import LEARN_S
from tests.compare.services import SERVICES, Traffic
from tests.kube.client import Json
from tests.kube.node_programs import NODE
from tests.kube.real_node import RealNode
from tests.kube.release import Release

pytestmark = [pytest.mark.kernel, pytest.mark.kube, pytest.mark.bench]

ROUNDS = int(os.environ.get("SWEETPOINT_GAIN_ROUNDS", "5"))
SECONDS = 10.0
LEAD_S = 2.0
# The agent finds a profile of another name at once; a few ticks of it are enough.
SETTLE_S = 2.0
# What a service suffers from, and what the agent may take for it (the goal of the project).
SUFFERS, GAIN, LEAST_WORK = 1.5, 0.7, 0.9

WEIGHTS = "kubelet's weights"
ALONE = "alone"
LEVEL = "idle level"
# Without the agent. kubelet forbids an idle level, which is a reference only.
WITHOUT = (ALONE, WEIGHTS, LEVEL)
# No link of the node is shaped, so on this channel there is nothing to move.
_NO_QUOTA = {"channels": ["network"]}
# The profiles of the arms with the agent, beyond that of the service.
PROFILES: Mapping[str, Json] = {
    "observe": {**_NO_QUOTA, "sched_idle": False},
    "idle-only": _NO_QUOTA,
    "quota-only": {"sched_idle": False},
    "enforce": {},
}
INDICATORS: Json = {
    "runq_delay_p99": {"sweet_point": {"learn": True, "until_sure": "2ms"}},
    "runq_p99": {"sweet_point": {"learn": True, "until_sure": "4ms"}},
    "cpi": {"sweet_point": "learn"},
}


@dataclass(frozen=True, slots=True)
class Case:
    """A service with a request of CPU next to a job in *pods*.

    On cgroup v1 a request of 8m has five times the weight of best-effort, which is about what v2
    gives a request of 100m; there v1 gives fifty times.
    """

    service: str
    shape: str
    job: str
    pods: int
    cpu: str
    qos: str = "Burstable"

    @property
    def resources(self) -> Json:
        amounts = {"cpu": self.cpu, "memory": "256Mi"}
        limits = {"limits": amounts} if self.qos == "Guaranteed" else {}
        return {"requests": amounts, **limits}


@dataclass(frozen=True, slots=True)
class Block:
    """The median of p99 in windows, the job's work per second, and CPUs used."""

    p99_ms: float
    work: float
    service_cpus: float
    job_cpus: float


class Bench:
    """The pods of *case* on *node*, its service, and blocks of one arm after the other."""

    def __init__(self, node: RealNode, case: Case, home: Path) -> None:
        self._node, self._case, self._home = node, case, home
        self._service, self._job = SERVICES[case.service], JOBS[case.job]
        self._namespace = node.make_namespace(node.cluster.new_name("gain"))
        self._port = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the pods, and the service in its own."""
        try:
            labels = {"app": self._case.service}
            self._pod("web", self._case.resources, labels)
            for name in self._job_names:
                self._pod(name, {}, {"app": name})
            with self._service.running(self._home, self._join("web")) as self._port:
                yield
        finally:
            for name in ("web", *self._job_names):
                self._node.delete_pod(self._namespace, name)

    def learn(self) -> None:
        """Run the load without a job as long as a sweet point takes to be sure."""
        self.choose("observe")
        self._traffic(LEARN_S).run()

    def choose(self, profile: str) -> None:
        """Give the service another *profile*."""
        path = f"/api/v1/namespaces/{self._namespace}/pods/web"
        labels = {"sweetpoint.dev/profile": profile}
        self._node.cluster.admin.patch(path, {"metadata": {"labels": labels}})
        time.sleep(SETTLE_S)

    def block(self, arm: str) -> Block:
        """Run the load once under *arm*."""
        if arm in PROFILES:
            self.choose(arm)
        level = self._node.host.cgroup("cpu", "kubepods/besteffort")
        if arm == LEVEL:
            (level / "cpu.idle").write_text("1")
        try:
            return self._measure([] if arm == ALONE else self._job_names)
        finally:
            if arm == LEVEL:
                (level / "cpu.idle").write_text("0")
                (level / "cpu.shares").write_text("2")  # kubelet's; the kernel forgot it

    def _measure(self, names: Sequence[str]) -> Block:
        outputs = {name: self._home / f"{name}.account" for name in names}
        for output in outputs.values():
            output.unlink(missing_ok=True)
        traffic = self._traffic(SECONDS)
        jobs: list[Process] = []
        try:
            time.sleep(LEAD_S)
            before = self._used_s()
            for name, output in outputs.items():
                command = self._job.command(output)
                jobs.append(start(name, command, self._home, join=self._join(name)))
            intended, latency_ns = traffic.run()
            after = self._used_s()
        finally:
            traffic.stop()
            for job in jobs:
                job.stop(self._job.stop_by, 15.0)
        ran_s = time.monotonic() - before[0]
        wall, service, job_s = (new - old for new, old in zip(after, before, strict=True))
        windows = list(window_p99_ms(intended, latency_ns, self._start_ns, SECONDS))
        work = [self._job.work(output.read_text()) or 0.0 for output in outputs.values()]
        # A job that computed and left no account would count as one that did nothing.
        assert job_s / wall < 0.1 or all(work), f"{outputs} used {job_s:.1f} s and did {work}"
        return Block(float(np.median(windows)), sum(work) / ran_s, service / wall, job_s / wall)

    def _traffic(self, seconds: float) -> Traffic:
        self._start_ns = time.monotonic_ns() + round(LEAD_S * NS_PER_SEC)
        segments = self._service.segments(self._case.shape, seconds)
        return Traffic(self._service, self._port, segments, self._start_ns, self._home)

    @property
    def _job_names(self) -> list[str]:
        return [f"job-{number}" for number in range(self._case.pods)]

    def _pod(self, name: str, resources: Json, labels: Mapping[str, str]) -> None:
        self._node.run_pod(self._namespace, name, resources, labels=labels)

    def _cgroup(self, controller: str, name: str) -> Path:
        """Return the cgroup of the container of the pod *name*."""
        pod = self._node.pod(self._namespace, name)
        qos = {"Guaranteed": "", "Burstable": "burstable/", "BestEffort": "besteffort/"}
        level = f"kubepods/{qos[pod['status']['qosClass']]}"
        (status,) = pod["status"]["containerStatuses"]
        container = status["containerID"].removeprefix("containerd://")
        return self._node.host.cgroup(controller, f"{level}pod{pod['metadata']['uid']}/{container}")

    def _join(self, name: str) -> partial[None]:
        cgroups = {self._cgroup(each, name) for each in ("cpu", "cpuacct")}
        return partial(_join, sorted(cgroups))

    def _used_s(self) -> tuple[float, float, float]:
        """Return seconds so far: of the clock, of the service's CPU time, of the job's."""
        jobs = (self._cgroup("cpuacct", name) for name in self._job_names)
        every = [_cpu_s(self._cgroup("cpuacct", "web")), sum(map(_cpu_s, jobs))]
        return time.monotonic(), every[0], every[1]


def _join(cgroups: Sequence[Path]) -> None:
    for cgroup in cgroups:
        (cgroup / "cgroup.procs").write_text("0")


def _cpu_s(cgroup: Path) -> float:
    return int((cgroup / "cpuacct.usage").read_text()) / NS_PER_SEC


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that the users of nginx and postgres can read."""
    path = Path(tempfile.mkdtemp(prefix="sweetpoint-gain-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def agent(node: RealNode, agent_image: None) -> Iterator[Release]:
    """The release, whose agent runs while the node has the label ``agent``."""
    small = {"requests": {"cpu": "2m", "memory": "64Mi"}}
    values = {
        "nodeSelector": {"agent": "yes"},
        "resources": small,
        "profiles": {
            name: {"indicators": INDICATORS, **values} for name, values in PROFILES.items()
        },
    }
    release = Release(node, values)
    show(node, True)
    release.install()
    try:
        yield release
    finally:
        release.uninstall()


def show(node: RealNode, wanted: bool) -> None:
    labels = {"agent": "yes" if wanted else None}
    node.cluster.admin.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": labels}})


def switch(release: Release, wanted: bool) -> None:
    """Start or end the agent on the node."""
    show(release.node, wanted)
    if wanted:
        release.agent()
    else:
        release.node.wait("the end of the agent", lambda: not release.pods())


@pytest.mark.parametrize(
    "case",
    [
        Case("nginx", "steady", "ffmpeg", 1, "8m"),
        Case("nginx", "steady", "cpu", 5, "8m"),
        Case("postgres", "stepped", "compiler", 1, "8m"),
        Case("nginx", "steady", "ffmpeg", 1, "100m"),
        Case("nginx", "steady", "cpu", 5, "100m"),
        Case("postgres", "stepped", "compiler", 1, "1", "Guaranteed"),
    ],
    ids=lambda case: f"{case.service}-{case.pods}-{case.job}-{case.cpu}-{case.qos}",
)
def test_gain_next_to_the_weights(case: Case, node: RealNode, agent: Release, home: Path) -> None:
    bench = Bench(node, case, home)
    blocks: dict[str, list[Block]] = {arm: [] for arm in (*WITHOUT, *PROFILES)}
    with bench.running():
        bench.learn()
        for number in range(ROUNDS):
            order = random.Random(number)
            # The agent is started or ended once in a round.
            for arms in ((WITHOUT, tuple(PROFILES)), (tuple(PROFILES), WITHOUT))[number % 2]:
                switch(agent, arms is not WITHOUT)
                for arm in order.sample(arms, len(arms)):
                    block = bench.block(arm)
                    blocks[arm].append(block)
                    print(f"\n{number + 1}/{ROUNDS} {arm}: {block}", end="", flush=True)
    suffers, gain, work = report(blocks)
    if suffers[0] >= SUFFERS:
        assert gain[0] <= GAIN and work[0] >= LEAST_WORK
    else:
        assert gain[1] <= 1.0 and work[2] >= 1.0


def report(blocks: Mapping[str, Sequence[Block]]) -> tuple[Interval, Interval, Interval]:
    """Print a line for each arm; return what the service suffers, and p99 and work of the agent."""

    def compare(arm: str, other: str, field: str) -> Interval:
        rows = zip(blocks[arm], blocks[other], strict=True)
        pairs = [(getattr(one, field), getattr(two, field)) for one, two in rows]
        return ratio_interval([pair for pair in pairs if min(pair) > 0])

    print(f"\np99 and work of each arm, and their ratio to {WEIGHTS}")
    for arm, found in blocks.items():
        p99 = [block.p99_ms for block in found]
        ratio = compare(arm, WEIGHTS, "p99_ms")
        line = f"{arm:18} p99 {np.median(p99):6.2f} ms ({min(p99):.2f} to {max(p99):.2f}), "
        line += "{:.2f} [{:.2f}, {:.2f}]".format(*ratio)
        if arm != ALONE:
            line += "; work {:.3f} [{:.3f}, {:.3f}]".format(*compare(arm, WEIGHTS, "work"))
            line += f", job {np.mean([block.job_cpus for block in found]):.2f} CPUs"
        print(line)
    return (
        compare(WEIGHTS, ALONE, "p99_ms"),
        compare("enforce", WEIGHTS, "p99_ms"),
        compare("enforce", WEIGHTS, "work"),
    )
