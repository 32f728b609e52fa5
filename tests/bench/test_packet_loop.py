# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The cache channel closed on CPU time per packet: memcached beside hogs of memory bandwidth.

Each block beside hogs lies between blocks without any, as in ``test_cpu_per_packet``. The hogs run
in a cgroup that an agent steers, or in one with a fixed quota. First a sweep finds the largest
fixed quota that holds the service, then the agent is compared with that.
"""

from collections.abc import Iterator
import math
import os
from pathlib import Path
import signal
import statistics
import time
from typing import NamedTuple

import pytest

from controller.agent.sampler import Sampler
from controller.demo.programs import free_port
from controller.host.facts import CgroupLayout
from tests.bench.served import RATE, Scene
from tests.compare.jobs import JOBS
from tests.kernel.agent import AgentRun
from tests.kernel.knobs import set_quota
from tests.kernel.samplers import open_sampler

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

# Pairs of blocks with the agent and with the best fixed quota; with five, and the sweep before
# them, a run takes nine minutes.
ROUNDS = int(os.environ.get("SWEETPOINT_ROUNDS", "5"))
SWEEP_ROUNDS = 3
SWEEP_CPUS = (0.1, 0.2, 0.4, 0.8, math.inf)
BLOCK_S = 10.0
STOP_WITHIN_S = 30.0
QUIET_BLOCKS = 3
# Of CPU time per packet relative to quiet blocks: the sweet point, and what counts as held.
SWEET_RATIO, HELD_RATIO = 1.05, 1.10
LEAST_WORK_RATIO = 0.9
PERIOD_US = 100_000
CONFIG = """\
mode: enforce
http: 127.0.0.1:{port}
state_dir: {home}/state
data_dir: {home}/data
profiles: [packets.yaml]
workloads:
  - {{name: service, cgroup: {root}/service, class: latency-sensitive, profile: packets}}
  - {{name: batch, cgroup: {root}/batch, class: best-effort}}
"""
PROFILE = """\
name: packets
indicators:
  cpu_per_packet: {{sweet_point: {sweet_point_us:.3f}us, tolerance: 1.1, min_samples: 100}}
channels: [cache]
"""


class Place(NamedTuple):
    """Where the agent finds its configuration, where its pages are, and which cgroup it steers."""

    config: Path
    port: int
    batch: Path

    def protected(self) -> bool:
        """Whether the best-effort cgroup is sched-idle."""
        return (self.batch / "cpu.idle").read_text().strip() == "1"


class Pair(NamedTuple):
    """A block beside hogs: CPU time per packet relative to its quiet neighbours, operations/s."""

    ratio: float
    work: float


class Bench:
    """Runs blocks; each beside hogs is compared with its quiet neighbours."""

    def __init__(self, scene: Scene, sampler: Sampler) -> None:
        self._scene, self._sampler = scene, sampler
        self.quiet_ns = 0.0

    def quiet(self) -> float:
        """Run a block without hogs; return CPU time per packet in ns."""
        self.quiet_ns = self._measure()
        return self.quiet_ns

    def beside(self, cgroup: str) -> Pair:
        """Run a block beside hogs in *cgroup*, and then a quiet one."""
        job, output = JOBS["stream"], self._scene.home / "stream.yaml"
        output.unlink(missing_ok=True)
        before_ns = self.quiet_ns
        began_s = time.monotonic()
        hogs = self._scene.start(cgroup, "hogs", job.command(output))
        try:
            beside_ns, took_s = self._measure(), time.monotonic() - began_s
        finally:
            hogs.stop(job.stop_by, STOP_WITHIN_S)
        work = job.work(output.read_text())
        assert work
        return Pair(2 * beside_ns / (before_ns + self.quiet()), work / took_s)

    def limited(self, cpus: float) -> Pair:
        """Do the same with a quota of *cpus*."""
        quota_us = None if math.isinf(cpus) else round(cpus * PERIOD_US)
        set_quota(self._scene.cpu / "other", quota_us, PERIOD_US)
        return self.beside("other")

    def _measure(self) -> float:
        before = self._counters()
        time.sleep(BLOCK_S)
        oncpu_ns, packets = (new - old for new, old in zip(self._counters(), before, strict=True))
        return oncpu_ns / packets

    def _counters(self) -> tuple[int, int]:
        (sample,) = self._sampler.poll().workloads
        sent, received = sample.tx_packets, sample.rx_packets
        assert sample.oncpu_ns is not None and sent is not None and received is not None
        return sample.oncpu_ns, sent + received


@pytest.fixture
def sampler(cgroup_layout: CgroupLayout, tmp_path: Path) -> Iterator[Sampler]:
    with open_sampler(cgroup_layout, tmp_path) as sampler:
        yield sampler


def test_the_loop_holds_cpu_time_per_packet(scene: Scene, sampler: Sampler) -> None:
    sampler.set_workloads((scene.workload,))
    with scene.serving("memcached") as traffic:
        bench = Bench(scene, sampler)
        quiet_ns = statistics.median(bench.quiet() for _ in range(QUIET_BLOCKS))
        print(f"\nmemcached, {RATE} requests/s, alone {quiet_ns:.0f} ns per packet")
        with AgentRun(_configure(scene, SWEET_RATIO * quiet_ns)) as agent:
            agent.ready().enforcing()
            bench.quiet()
            best = _sweep(bench)
            if math.isinf(best):
                pytest.skip("the service needs no limit of these hogs on this machine")
            managed, fixed = [], []
            for _ in range(ROUNDS):
                managed.append(bench.beside("batch"))
                fixed.append(bench.limited(best))
            assert agent.stop(signal.SIGTERM) == 0
        traffic.check()
    ratio = _show("the agent", managed)
    _show(f"{best:g} CPUs", fixed)
    work = statistics.median(
        ours.work / other.work for ours, other in zip(managed, fixed, strict=True)
    )
    print(f"  work of the agent's hogs relative to those with {best:g} CPUs: {work:.2f}")
    assert ratio <= HELD_RATIO
    assert work >= LEAST_WORK_RATIO


def _configure(scene: Scene, sweet_point_ns: float) -> Place:
    config, port = scene.home / "config.yaml", free_port()
    root = Path(scene.workload.path).parent
    config.write_text(CONFIG.format(port=port, home=scene.home, root=root))
    profile = scene.home / "packets.yaml"
    profile.write_text(PROFILE.format(sweet_point_us=sweet_point_ns / 1000))
    return Place(config, port, scene.cpu / "batch")


def _sweep(bench: Bench) -> float:
    """Return the largest quota in CPUs beside which the service is held, else the smallest."""
    pairs: dict[float, list[Pair]] = {cpus: [] for cpus in SWEEP_CPUS}
    for _ in range(SWEEP_ROUNDS):
        for cpus, found in pairs.items():
            found.append(bench.limited(cpus))
    ratios = {cpus: _show(f"{cpus:g} CPUs", found) for cpus, found in pairs.items()}
    return max((cpus for cpus in SWEEP_CPUS if ratios[cpus] <= HELD_RATIO), default=SWEEP_CPUS[0])


def _show(name: str, found: list[Pair]) -> float:
    """Print the pairs of a row and return the median ratio."""
    ratio = statistics.median(each.ratio for each in found)
    work = statistics.median(each.work for each in found)
    every = " ".join(f"{each.ratio:.3f}" for each in sorted(found))
    print(f"  {name}: ratio {ratio:.3f} of {every}; {work:.1f} operations/s")
    return ratio
