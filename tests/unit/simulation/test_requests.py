# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The queue against formulas of queueing theory."""

from math import factorial

import numpy as np
import pytest

from controller.simulation.requests import RequestQueue, draw_arrivals

STEP_S = 0.1


def serve(workers: int, rate: float, work_s: float, seconds: int, speed: float = 1.0) -> np.ndarray:
    """Return the latencies of a queue with exponential work at a constant speed."""
    random = np.random.default_rng(7)
    arrivals = draw_arrivals(np.full(seconds * 10, rate), STEP_S, random)
    work = random.exponential(work_s, len(arrivals))
    queue = RequestQueue(workers)
    latencies = []
    for step in range(seconds * 10):
        edges = np.array([step * STEP_S, (step + 1) * STEP_S])
        here = slice(*np.searchsorted(arrivals, edges))
        latencies.append(queue.advance(edges, np.array([speed]), arrivals[here], work[here]))
    return np.concatenate(latencies)


def erlang_c(workers: int, offered: float) -> float:
    """Return the probability that a request waits in M/M/c."""
    last = offered**workers / factorial(workers) * workers / (workers - offered)
    return last / (sum(offered**k / factorial(k) for k in range(workers)) + last)


@pytest.mark.parametrize("workers, rate", [(1, 50.0), (4, 300.0), (8, 700.0)])
def test_mean_latency_is_that_of_mmc(workers: int, rate: float) -> None:
    work_s = 0.01
    offered = rate * work_s
    wait = erlang_c(workers, offered) * work_s / (workers - offered)
    latencies = serve(workers, rate, work_s, seconds=3000 // workers)
    assert latencies.mean() == pytest.approx(wait + work_s, rel=0.05)


def test_p99_of_a_single_worker_is_exponential() -> None:
    rate, work_s = 60.0, 0.01
    expected = -np.log(0.01) / (1 / work_s - rate)
    latencies = serve(1, rate, work_s, seconds=3000)
    assert np.quantile(latencies, 0.99) == pytest.approx(expected, rel=0.08)


def test_half_the_speed_is_twice_the_work() -> None:
    slow = serve(4, 150.0, 0.01, seconds=500, speed=0.5)
    long = serve(4, 150.0, 0.02, seconds=500)
    assert slow.mean() == pytest.approx(long.mean(), rel=1e-6)


def test_a_request_waits_while_nothing_runs() -> None:
    queue = RequestQueue(1)
    edges = np.array([0.0, 0.05, 0.1])
    first = queue.advance(edges, np.array([1e-9, 1e-9]), np.array([0.02]), np.array([0.01]))
    assert len(first) == 0
    assert queue.ages() == pytest.approx([0.08])
    done = queue.advance(edges + 0.1, np.array([1e-9, 1.0]), np.empty(0), np.empty(0))
    assert done == pytest.approx([0.15 + 0.01 - 0.02])


def test_requests_start_in_the_order_of_arrival() -> None:
    queue = RequestQueue(2)
    arrivals, work = np.array([0.0, 0.0, 0.01]), np.array([0.05, 0.02, 0.01])
    done = queue.advance(np.array([0.0, 0.1]), np.array([1.0]), arrivals, work)
    assert done == pytest.approx([0.05, 0.02, 0.02])


def test_backlog_is_the_work_that_is_left() -> None:
    queue = RequestQueue(2)
    arrivals, work = np.array([0.0, 0.0, 0.0]), np.array([0.3, 0.1, 0.1])
    queue.advance(np.array([0.0, 0.1]), np.array([1.0]), arrivals, work)
    assert queue.backlog_s == pytest.approx(0.3)


def test_arrivals_follow_the_rate() -> None:
    random = np.random.default_rng(3)
    rate = np.repeat([100.0, 900.0], 500)
    arrivals = draw_arrivals(rate, STEP_S, random)
    assert np.all(np.diff(arrivals) >= 0)
    assert np.sum(arrivals < 50) == pytest.approx(5000, rel=0.06)
    assert np.sum(arrivals >= 50) == pytest.approx(45000, rel=0.03)
