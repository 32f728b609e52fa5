# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CPU time per packet of memcached and redis beside best-effort work of several kinds.

Blocks with a neighbour lie between blocks without one, because the speed of a virtual machine
varies over minutes by more than the effect: the figure of a pair is the ratio of a block to the
mean of its two quiet neighbours. The best-effort work runs under sched-idle, so it hardly delays
the service; what remains is its use of caches and memory.
"""

from collections.abc import Iterator, Mapping
import contextlib
import os
from pathlib import Path
import signal
import statistics
import time
from typing import NamedTuple

import pytest

from controller.agent.sampler import Sampler
from controller.host.facts import CgroupLayout
from tests.bench.served import RATE, Scene
from tests.kernel.samplers import open_sampler

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

# Three rounds take four minutes; SWEETPOINT_ROUNDS sets another number.
ROUNDS = int(os.environ.get("SWEETPOINT_ROUNDS", "3"))
BLOCK_S = 10.0
SETTLE_S = 1.0
NEIGHBOURS: Mapping[str, tuple[str, ...]] = {
    "stream": ("--stream",),
    "cpu": ("--cpu",),
    "matrix": ("--matrix",),
    "nothing": (),
}


class Counters(NamedTuple):
    """Counters of the service: on-CPU time and inflicted wait in ns, packets, picks by a CPU."""

    oncpu_ns: int
    inflicted_ns: int
    packets: int
    picks: int

    def __sub__(self, other: "Counters") -> "Counters":
        return Counters(*(mine - others for mine, others in zip(self, other, strict=True)))

    @property
    def ns_per_packet(self) -> float:
        return self.oncpu_ns / self.packets


@pytest.fixture
def sampler(cgroup_layout: CgroupLayout, tmp_path: Path) -> Iterator[Sampler]:
    with open_sampler(cgroup_layout, tmp_path) as sampler:
        yield sampler


def counters(sampler: Sampler) -> Counters:
    """Return the service's counters so far."""
    (sample,) = sampler.poll().workloads
    oncpu_ns, inflicted_ns = sample.oncpu_ns, sample.wait_inflicted_ns
    sent, received = sample.tx_packets, sample.rx_packets
    assert oncpu_ns is not None and inflicted_ns is not None
    assert sent is not None and received is not None
    return Counters(oncpu_ns, inflicted_ns, sent + received, sample.waits or 0)


def measure(sampler: Sampler, scene: Scene, options: tuple[str, ...]) -> Counters:
    """Run one block beside stress-ng with *options*."""
    with contextlib.ExitStack() as stack:
        if options:
            cpus = str(os.cpu_count())
            batch = scene.start("batch", "stress-ng", ["stress-ng", *options, cpus])
            stack.callback(batch.stop, signal.SIGINT)
        time.sleep(SETTLE_S)
        before = counters(sampler)
        time.sleep(BLOCK_S - SETTLE_S)
        return counters(sampler) - before


@pytest.mark.parametrize("service", ["memcached", "redis"])
def test_cpu_time_per_packet(service: str, scene: Scene, sampler: Sampler) -> None:
    sampler.set_workloads((scene.workload,))
    ratios: dict[str, list[float]] = {name: [] for name in NEIGHBOURS}
    blocks: dict[str, list[Counters]] = {name: [] for name in NEIGHBOURS}
    quiet: list[Counters] = []
    with scene.serving(service) as traffic:
        before = measure(sampler, scene, ())
        for _ in range(ROUNDS):
            for name, options in NEIGHBOURS.items():
                block = measure(sampler, scene, options)
                after = measure(sampler, scene, ())
                alone_ns = (before.ns_per_packet + after.ns_per_packet) / 2
                ratios[name].append(block.ns_per_packet / alone_ns)
                blocks[name].append(block)
                quiet.append(after)
                before = after
        traffic.check()
    print(f"\n{service}, {RATE} requests/s, alone: {_describe(quiet)}")
    for name, values in ratios.items():
        print(f"  {name}: {_describe(blocks[name])}")
        middle = statistics.median(values)
        print(f"    ratio {middle:.3f} of", " ".join(f"{value:.3f}" for value in sorted(values)))


def _describe(blocks: list[Counters]) -> str:
    whole = Counters(*map(sum, zip(*blocks, strict=True)))
    return (
        f"{whole.ns_per_packet:.0f} ns per packet, {whole.picks / whole.packets:.2f} picks per "
        f"packet, inflicted wait {whole.inflicted_ns / whole.oncpu_ns:.1%} of on-CPU time"
    )
