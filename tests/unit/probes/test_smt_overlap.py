# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The SMT overlap of services with best-effort work, from a made-up array of running slots."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
import pytest

from controller.core.units import NS_PER_SEC
from controller.host.facts import core_siblings
from controller.probes.smt_overlap import OverlapMeter

Slots = NDArray[np.uint64]
IDLE, SERVICE, BATCH, OTHER = 1, 3, 4, 5


@pytest.fixture
def running() -> Slots:
    return np.full(4, IDLE, np.uint64)


@pytest.fixture
def meter(running: Slots) -> Iterator[OverlapMeter]:
    meter = OverlapMeter(running, [(0, 2), (1, 3)], max_slots=8)
    meter._stop.set()  # the tests take the samples
    meter._thread.join()
    meter.set_workloads([SERVICE], [BATCH])
    yield meter
    meter.close()


def sample(meter: OverlapMeter, running: Slots, slots: list[int], times: int) -> None:
    running[:] = slots
    for _ in range(times):
        meter.sample()


def test_counts_only_the_other_thread_of_the_same_core(meter: OverlapMeter, running: Slots) -> None:
    sample(meter, running, [SERVICE, BATCH, IDLE, BATCH], 30)
    sample(meter, running, [SERVICE, IDLE, BATCH, IDLE], 10)
    sample(meter, running, [BATCH, IDLE, SERVICE, OTHER], 20)
    sample(meter, running, [OTHER, BATCH, BATCH, SERVICE], 40)
    assert meter.poll(NS_PER_SEC) == pytest.approx(70 / 100)


def test_two_services_on_one_core_are_no_overlap(meter: OverlapMeter, running: Slots) -> None:
    sample(meter, running, [SERVICE, IDLE, SERVICE, IDLE], 50)
    assert meter.poll(NS_PER_SEC) == 0.0


def test_too_few_samples_give_no_result(meter: OverlapMeter, running: Slots) -> None:
    sample(meter, running, [SERVICE, IDLE, BATCH, IDLE], 49)
    sample(meter, running, [IDLE, IDLE, BATCH, BATCH], 500)
    assert meter.poll(NS_PER_SEC) is None


def test_samples_older_than_30_s_do_not_count(meter: OverlapMeter, running: Slots) -> None:
    sample(meter, running, [SERVICE, IDLE, BATCH, IDLE], 60)
    assert meter.poll(1 * NS_PER_SEC) == 1.0
    sample(meter, running, [SERVICE, IDLE, IDLE, IDLE], 60)
    assert meter.poll(20 * NS_PER_SEC) == 0.5
    assert meter.poll(32 * NS_PER_SEC) == 0.0


def test_the_thread_takes_samples_and_ends(running: Slots) -> None:
    running[:] = [SERVICE, IDLE, BATCH, IDLE]
    meter = OverlapMeter(running, [(0, 2), (1, 3)], max_slots=8)
    meter.set_workloads([SERVICE], [BATCH])
    while not meter._busy:
        pass
    meter.close()
    assert not meter._thread.is_alive()


def test_siblings_are_the_threads_of_one_core(tmp_path: Path) -> None:
    (tmp_path / "online").write_text("0-4\n")
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert core_siblings(tmp_path) == ((0, 2), (1, 3))
    for cpu in range(4):
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(f"{cpu}\n")
    assert core_siblings(tmp_path) == ()
