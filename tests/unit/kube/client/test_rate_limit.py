# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How long to wait: bounded, growing, spread, and never shorter than the server asked for."""

from random import Random
from statistics import mean

from controller.kube.client.rate_limit import Backoff


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def waits(count: int, seed: int) -> list[float]:
    clock = Clock()
    backoff = Backoff(Random(seed), first_s=1, longest_s=30, clock=clock)
    found = []
    for _ in range(count):
        found.append(backoff.next_s())
        clock.now_s += found[-1]
    return found


def test_waits_double_on_average_up_to_the_longest() -> None:
    runs = [waits(10, seed) for seed in range(400)]
    averages = [mean(run[step] for run in runs) for step in range(10)]
    for average, ceiling in zip(averages, [1, 2, 4, 8, 16, 30, 30, 30, 30, 30], strict=True):
        assert 0.4 * ceiling < average < 0.6 * ceiling
    assert max(max(run) for run in runs) <= 30


def test_nodes_do_not_come_back_together() -> None:
    assert len({round(waits(6, seed)[-1], 1) for seed in range(100)}) > 50


def test_what_the_server_asks_for_comes_before_the_jitter() -> None:
    found = [Backoff(Random(seed)).next_s(7.0) for seed in range(50)]
    assert min(found) >= 7
    assert len(set(found)) == 50


def test_it_starts_anew_after_a_time_without_trouble_and_not_before() -> None:
    clock = Clock()
    backoff = Backoff(Random(3), first_s=1, longest_s=30, clock=clock)

    def ceiling() -> float:
        # The random numbers of a seed are known, so the ceiling is what they are multiplied by.
        factor = Random()
        factor.setstate(random.getstate())
        return backoff.next_s() / factor.random()

    random = backoff._random
    assert [round(ceiling()) for _ in range(3)] == [1, 2, 4]
    clock.now_s += 20
    assert round(ceiling()) == 8
    clock.now_s += 200
    assert round(ceiling()) == 1
    assert round(ceiling()) == 2
    backoff.reset()
    assert round(ceiling()) == 1
