# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What runs on the node: jobs, loads, machines."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.plant.jobs import INTEGER, STREAM, THRASH, VECTOR, Character, Job
from tests.plant.machine import Machine
from tests.plant.node import Service
from tests.plant.requests import Load

__all__ = ("LENGTH_S", "OBJECTIVE_S", "SCENARIOS", "WARM_UP_S", "Scenario", "learning_load")

LENGTH_S, WARM_UP_S = 240.0, 60.0
OBJECTIVE_S = 0.010
_RATE = 2400.0


@dataclass(frozen=True)
class Scenario:
    """A run: what *text* says, with a service and jobs on a machine."""

    text: str
    jobs: tuple[Job, ...]
    service: Service
    machine: Machine = field(default_factory=Machine)


def _steady(now_s: float) -> float:
    return _RATE


def _steps(now_s: float) -> float:
    return 1600.0 if now_s % 80.0 < 40.0 else 2700.0


def _square(now_s: float) -> float:
    return 1500.0 if now_s % 14.0 < 7.0 else 2700.0


def learning_load(now_s: float) -> float:
    """Return the load while sweet points are learned: all levels between 1,400 and 2,800/s."""
    return 1400.0 + 200.0 * (int(now_s / 20.0) % 8)


def _own_fault(now_s: float) -> float:
    return 1.6 if now_s >= 10.0 else 1.0


def _jobs(*characters: Character, threads: int = 8) -> tuple[Job, ...]:
    return tuple(Job(f"job{n}", threads, (each,)) for n, each in enumerate(characters))


def _turns(harmful: Character) -> tuple[Job, ...]:
    cycle = (harmful, INTEGER, INTEGER)
    return tuple(Job(f"job{n}", 8, cycle[-n:] + cycle[:-n]) for n in range(3))


def _service(rate: Callable[[float], float] = _steady, burst: float = 1.0) -> Service:
    return Service(Load(rate, burst))


_ONE = _jobs(INTEGER, STREAM, INTEGER)
_CHANGING = (
    Job("job0", 8, (STREAM, INTEGER, VECTOR, THRASH)),
    *_jobs(INTEGER, INTEGER, INTEGER)[1:],
)

SCENARIOS = {
    "one-hurts": Scenario("one of three jobs streams memory", _ONE, _service()),
    "load-step": Scenario("the load steps every 40 s", _ONE, _service(_steps)),
    "culprit-moves": Scenario("another job streams every 20 s", _turns(STREAM), _service()),
    "sensitive": Scenario(
        "the service is four times as sensitive", _ONE, Service(Load(_steady), sensitive=5.0)
    ),
    "two-hogs": Scenario(
        "two of three jobs fill the cores' units", _jobs(VECTOR, INTEGER, VECTOR), _service()
    ),
    "eight-jobs": Scenario(
        "one of eight jobs streams",
        _jobs(*([INTEGER] * 3), STREAM, *([INTEGER] * 4), threads=4),
        Service(Load(_steady), sensitive=3.6),
    ),
    "thrash": Scenario(
        "one of three jobs thrashes the cache",
        _jobs(THRASH, INTEGER, INTEGER),
        Service(Load(_steady), sensitive=2.8),
    ),
    "bursts": Scenario("bursts of 40 % more load", _ONE, _service(lambda now_s: 2000.0, 1.4)),
    "square": Scenario("a square wave of load, 7 s each", _ONE, _service(_square)),
    "one-changes": Scenario(
        "one job changes its character every 20 s",
        _CHANGING,
        Service(Load(_steady), sensitive=2.1),
    ),
    "own-fault": Scenario(
        "the service itself takes 1.6 times as long",
        _jobs(INTEGER, INTEGER, INTEGER),
        Service(Load(_steady), own=_own_fault),
    ),
    "own-fault-traffic": Scenario(
        "the service takes 2.1 times as long at half the load, beside a streamer that hurts little",
        _ONE,
        Service(Load(lambda now_s: _RATE / 2), own=lambda now_s: 2.1, sensitive=0.2),
    ),
    "vm": Scenario(
        "a virtual machine without sched-idle and counters",
        _ONE,
        Service(Load(_steady), job_weight=25.0),
        Machine(idle_level=False, counters=False, partitions=False),
    ),
}
