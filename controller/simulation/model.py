# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What runs on a simulated node: services, jobs and how they use the hardware."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from controller.simulation.machine import Array, Machine

__all__ = ("Character", "Job", "Load", "Scenario", "Service")

# Level of load (1 is the highest that the service is sized for) at each of the given times in s.
Load = Callable[[Array, np.random.Generator], Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Character:
    """How a running thread uses the hardware.

    ``memory`` is the part of its time alone that is spent waiting for memory, ``bandwidth`` what it
    reads and writes on one CPU at full speed, in bytes/s. ``pressure`` is its rate of insertions
    into the cache (1: a program of average size), ``working_set`` the ways that hold what it uses
    again, ``miss_cost`` the factor by which its waiting for memory grows when none of that is
    cached. ``smt`` is the part of its speed that a program on the other thread of its core loses,
    for a program that loses as much as the average; ``smt_loss`` is its own sensitivity (1: the
    average).
    """

    memory: float = 0.1
    bandwidth: float = 0.3e9
    pressure: float = 1.0
    working_set: float = 1.0
    miss_cost: float = 2.0
    smt: float = 0.25
    smt_loss: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service: ``workers`` that each serve one request at a time, in the order of arrival.

    ``work_s`` is the mean time of a request alone on the node, log-normal with the coefficient of
    variation ``work_cv``. ``rate`` is the arrivals per second at a load of 1, ``slo_s`` the
    objective for the p99 of every second. ``quota_cpus`` is a limit of its own, of 100 ms periods.
    ``load`` replaces the load of the scenario.
    """

    name: str = "web"
    workers: int = 8
    work_s: float = 2e-3
    work_cv: float = 0.5
    rate: float = 3000.0
    slo_s: float = 9.5e-3
    quota_cpus: float | None = None
    load: Load | None = None
    character: Character = field(
        default_factory=lambda: Character(
            memory=0.4, bandwidth=0.8e9, pressure=2.0, working_set=5.0, miss_cost=1.8, smt=0.2
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A best-effort workload of ``threads`` that always have work.

    ``harmful``: it is the one to be limited; what a policy did is compared with that.
    """

    name: str
    threads: float
    character: Character
    harmful: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A node, what runs on it, and what changes.

    ``jobs_at`` gives the jobs at a time in s, always as many with the same names; ``slow_at`` is
    the factor on the services' own work, ``steal_at`` the part of the CPU time that the hypervisor
    takes. ``restless``: the load or the culprit changes faster than every 30 s.
    """

    name: str
    title: str
    load: Load
    jobs_at: Callable[[float], tuple[Job, ...]]
    services: tuple[Service, ...] = (Service(),)
    machine: Machine = field(default_factory=Machine)
    slow_at: Callable[[float], float] = lambda _: 1.0
    steal_at: Callable[[float], float] = lambda _: 0.0
    restless: bool = False
