# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The physics of the simulated node: nothing is made from nothing, and more use costs more."""

import numpy as np
import pytest

from tests.plant.jobs import INTEGER, STREAM, THRASH, VECTOR, Character, Job
from tests.plant.machine import Machine, busy_siblings, latency_factor, share, throttle_factor
from tests.plant.node import STEP_S, Node, Service
from tests.plant.requests import Dispatch, Load, Queue


def _node(*characters: Character, threads: int = 8, rate: float = 2000.0) -> Node:
    jobs = tuple(Job(f"job{n}", threads, (each,)) for n, each in enumerate(characters))
    node = Node(Machine(), Service(Load(lambda now_s: rate)), jobs, 4.0, seed=1)
    node.knobs.idle = [True] * len(jobs)
    return node


def _run(node: Node, length_s: float = 3.0) -> Node:
    for _ in range(round(length_s / STEP_S)):
        node.step()
    return node


def _cpi(node: Node) -> float:
    return float(node.counters.cycles[0] / node.counters.instructions[0])


@pytest.mark.parametrize(
    ("capacity", "wants", "weights", "got"),
    [
        (10.0, [1.0, 2.0], [1.0, 1.0], [1.0, 2.0]),
        (10.0, [8.0, 8.0], [1.0, 1.0], [5.0, 5.0]),
        (10.0, [1.0, 20.0, 20.0], [1.0, 1.0, 2.0], [1.0, 3.0, 6.0]),
        (0.0, [1.0, 2.0], [1.0, 1.0], [0.0, 0.0]),
    ],
)
def test_share(capacity: float, wants: list[float], weights: list[float], got: list[float]) -> None:
    assert share(capacity, wants, weights) == pytest.approx(got)


def test_cpu_time_is_conserved() -> None:
    node = _node(INTEGER, STREAM, VECTOR)
    idle_s = 0.0
    for _ in range(300):
        node.step()
        counters = node.counters
        assert counters.idle_s >= idle_s - 1e-9
        idle_s = counters.idle_s
        used_s = float(counters.oncpu.sum()) + counters.system_s + idle_s
        assert used_s == pytest.approx(16 * node.now_s)
    # Work-conserving but for the cost of wake-ups, which is 10 us each.
    assert 0 < idle_s < 0.03 * 16 * node.now_s


@pytest.mark.parametrize(("amount_s", "period_s"), [(0.005, 0.01), (0.013, 0.037), (0.001, 0.1)])
def test_a_quota_is_kept(amount_s: float, period_s: float) -> None:
    node = _node(INTEGER, INTEGER)
    node.knobs.quotas[0] = amount_s, period_s
    _run(node, 3.7)
    most_s = amount_s * (1 + 3.7 / period_s)
    assert 0.9 * most_s < node.counters.oncpu[1] <= most_s
    assert node.counters.throttled[1] > 0
    assert node.counters.oncpu[2] > 20  # the other job takes what is left


def test_a_quota_of_the_parent_is_kept() -> None:
    node = _node(INTEGER, STREAM)
    node.knobs.limit_cpus = 1.5
    _run(node)
    assert float(node.counters.oncpu[1:].sum()) == pytest.approx(1.5 * 3.0)


def test_more_use_of_memory_means_more_delay() -> None:
    factors = [latency_factor(each / 10) for each in range(11)]
    assert factors == sorted(factors)
    assert factors[0] == 1
    few, many = _run(_node(STREAM, threads=2)), _run(_node(STREAM, threads=10))
    assert many.counters.bytes[1] > few.counters.bytes[1]
    assert _cpi(many) > 1.1 * _cpi(few)


def test_a_throttled_streamer_moves_less_and_hurts_less() -> None:
    factors = [throttle_factor(each) for each in range(100, 9, -10)]
    assert factors == sorted(factors)
    assert factors[0] == 1
    free, throttled = _node(STREAM), _node(STREAM)
    throttled.knobs.percent = 10
    _run(free)
    _run(throttled)
    assert throttled.counters.bytes[1] < 0.6 * free.counters.bytes[1]
    assert throttled.counters.oncpu[1] > 0.9 * free.counters.oncpu[1]
    assert _cpi(throttled) < _cpi(free)


def test_cache_ways_protect_the_working_set() -> None:
    open_, fenced = _node(THRASH), _node(THRASH)
    fenced.knobs.region = 2 / 16
    _run(open_)
    _run(fenced)
    assert fenced.counters.misses[0] < open_.counters.misses[0]
    assert fenced.counters.misses[1] / fenced.counters.instructions[1] > (
        open_.counters.misses[1] / open_.counters.instructions[1]
    )


def test_vector_code_slows_siblings_down() -> None:
    assert busy_siblings(2.0, 0.0, 16) == 0
    assert busy_siblings(4.0, 4.0, 16) < busy_siblings(4.0, 12.0, 16) <= 1
    assert _cpi(_run(_node(VECTOR, VECTOR))) > 1.2 * _cpi(_run(_node(INTEGER, INTEGER)))


def test_sched_idle_spares_the_service_waits() -> None:
    idle, normal = _node(INTEGER, INTEGER, INTEGER), _node(INTEGER, INTEGER, INTEGER)
    normal.knobs.idle = [False] * 3
    _run(idle)
    _run(normal)
    assert idle.counters.inflicted[0] > 0  # a wake-up has a cost
    assert normal.counters.inflicted[0] > 5 * idle.counters.inflicted[0]
    assert float(idle.counters.blame.sum()) + idle.counters.unknown_s == pytest.approx(
        float(idle.counters.inflicted[0])
    )


def test_a_queue_serves_in_order() -> None:
    times, work_s = np.array([0.001, 0.002, 0.003]), np.array([0.004, 0.004, 0.004])
    queue = Queue(times, work_s, workers=1, rng=np.random.default_rng(1))
    served = queue.step(0.0, 0.02, Dispatch(slowdown=1.0))
    assert served.started == 3
    assert served.busy_s == pytest.approx(0.012)
    assert queue.p99(0) == pytest.approx(0.0099, rel=0.05)
    assert len(served.waits_s) == 1  # a worker with a next request does not sleep
    assert queue.p99(1) is None


def test_a_client_gives_up() -> None:
    times, work_s = np.array([0.0, 0.1]), np.array([1.5, 0.01])
    queue = Queue(times, work_s, workers=1, rng=np.random.default_rng(1))
    busy = sum(queue.step(n * 0.01, (n + 1) * 0.01, Dispatch(1.0)).busy_s for n in range(200))
    assert busy == pytest.approx(1.5, rel=1e-3)
    assert queue.p99(1) == pytest.approx(1.5, rel=0.01)
