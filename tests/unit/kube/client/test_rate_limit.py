# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Back-off and its jitter; the bound on log lines that pod owners can cause."""

import logging
from random import Random
from statistics import mean

import pytest

from controller.kube.client.rate_limit import Backoff, RateLimitedLogger


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


def test_nodes_do_not_retry_together() -> None:
    assert len({round(waits(6, seed)[-1], 1) for seed in range(100)}) > 50


def test_the_jitter_is_added_to_retry_after() -> None:
    found = [Backoff(Random(seed)).next_s(7.0) for seed in range(50)]
    assert min(found) >= 7
    assert len(set(found)) == 50


def test_the_ceiling_starts_again_after_a_time_without_failures_and_not_before() -> None:
    clock = Clock()
    backoff = Backoff(Random(3), first_s=1, longest_s=30, clock=clock)

    def ceiling() -> float:
        # The wait is the ceiling times a random number, which a copy of the generator repeats.
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


def test_a_flood_of_log_lines_is_cut_off_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    log = RateLimitedLogger(logging.getLogger("x"), lambda: now_s)
    for number in range(100_000):
        log.warning(f"line {number}")
        now_s += 0.01
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:250] == [f"line {number}" for number in range(250)]
    # In 1,000 s one line per 10 s, each preceded by the number of suppressed lines.
    suppressed = [line for line in lines if line.endswith("there are too many")]
    assert 95 <= len(suppressed) <= 100
    assert len(lines) == 250 + 2 * len(suppressed)
