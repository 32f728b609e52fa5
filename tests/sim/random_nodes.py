# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Random nodes, loads, jobs and profiles for the simulation at request level.

Everything is drawn from wide ranges, also what makes no sense: objectives that cannot be kept,
sweet points below what is normal, jobs that never run.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from controller.config.fields import check
from controller.config.models import ProfileModel
from controller.config.profile import build_profile
from controller.config.yaml_document import parse_document
from controller.core.settings import Profile
from controller.simulation.loads import bursty, square, steady, steps
from controller.simulation.machine import Machine
from controller.simulation.model import Character, Job, Load, Scenario, Service
from controller.simulation.policies.planned import TICK_NS

__all__ = ("ASLEEP", "random_profile", "random_scenario")

ASLEEP = "asleep-"
# The load after the jobs have stopped.
QUIET_LOAD = 0.1


def random_scenario(random: Random, quiet_s: float) -> Scenario:
    """Return a node on which some jobs never run and the others stop at *quiet_s*."""
    cores = random.choice((1, 2, 4, 8, 16, 32))
    threads = random.choice((1, 2))
    machine = Machine(
        cpus=cores * threads,
        threads_per_core=threads,
        bandwidth=_between(random, 5e9, 200e9),
        ways=random.randint(4, 20),
        pmu=random.random() < 0.8,
        resctrl=random.random() < 0.6,
        sched_idle=random.random() < 0.8,
    )
    services = tuple(_service(random, index, machine) for index in range(random.randint(1, 3)))
    jobs = tuple(_job(random, index, machine) for index in range(random.randint(0, 12)))
    slow, steal = random.choice((1.0, 1.0, 1.0, 1.4, 3.0)), random.choice((0.0, 0.0, 0.1, 0.4))
    onset_s = random.uniform(0.0, quiet_s)
    return Scenario(
        name="random",
        title="a random node",
        load=steady(0.5),
        jobs_at=_until(quiet_s, jobs),
        services=tuple(replace(each, load=_quiet(_load(random), quiet_s)) for each in services),
        machine=machine,
        slow_at=lambda time_s: slow if onset_s <= time_s < quiet_s else 1.0,
        steal_at=lambda time_s: steal if onset_s <= time_s < quiet_s else 0.0,
    )


def random_profile(random: Random, service: Service) -> Profile:
    """Return a profile with one to three indicators for *service*, and often an eviction."""
    slo_ms = service.slo_s * 1e3
    cpi, wait_ms = _between(random, 0.5, 4.0), _between(random, 0.1, 20.0)
    indicators = random.sample(
        (
            f"service: {{sweet_point: {{objective: {slo_ms:.3f}ms}}}}",
            f"cpi: {{sweet_point: {cpi:.3f}}}",
            f"cpi: {{sweet_point: {{learn: true, until_sure: {cpi:.3f}}}}}",
            f"runq_p99: {{sweet_point: {wait_ms:.3f}ms}}",
            f"runq_p99: {{sweet_point: {{learn: true, until_sure: {wait_ms:.3f}ms}}}}",
            "cpu_per_packet: {sweet_point: learn}",
        ),
        random.randint(1, 3),
    )
    named = {each.split(":")[0]: each for each in indicators}
    lines = [
        f"name: {service.name}",
        "indicators:",
        *(f"  {each}" for each in named.values()),
        f"channels: [{random.choice(('cpu', 'cache', 'cpu, cache'))}]",
        f"evict: {{enabled: {str(random.random() < 0.5).lower()}, after: 10s}}",
    ]
    document = parse_document("\n".join(lines), "random")
    return build_profile(document, check(document, ProfileModel), TICK_NS, evicts=True)


def _between(random: Random, low: float, high: float) -> float:
    """Return a number of which each octave is equally likely."""
    return float(low * (high / low) ** random.random())


def _service(random: Random, index: int, machine: Machine) -> Service:
    workers = random.randint(1, max(1, machine.cpus))
    work_s = _between(random, 2e-4, 5e-2)
    return Service(
        name=f"service-{index}",
        workers=workers,
        work_s=work_s,
        work_cv=random.uniform(0.1, 2.0),
        rate=min(3000.0, _between(random, 0.02, 1.5) * workers / work_s),
        slo_s=work_s * _between(random, 1.5, 30.0),
        quota_cpus=random.choice((None, None, None, _between(random, 0.2, machine.cpus))),
        character=_character(random),
    )


def _job(random: Random, index: int, machine: Machine) -> Job:
    asleep = random.random() < 0.3
    return Job(
        name=f"{ASLEEP if asleep else ''}job-{index}",
        threads=0.0 if asleep else _between(random, 0.05, 2.0 * machine.cpus),
        character=_character(random),
    )


def _character(random: Random) -> Character:
    return Character(
        memory=random.uniform(0.0, 0.9),
        bandwidth=_between(random, 1e7, 1.2e10),
        pressure=_between(random, 0.05, 30.0),
        working_set=_between(random, 0.1, 15.0),
        miss_cost=random.uniform(0.0, 4.0),
        smt=random.uniform(0.0, 0.7),
        smt_loss=random.uniform(0.0, 2.0),
    )


def _load(random: Random) -> Load:
    low, high = sorted((random.uniform(0.05, 1.3), random.uniform(0.05, 1.3)))
    return random.choice(
        (
            steady(high),
            steps(low, high, every_s=random.uniform(2.0, 20.0)),
            square(low, high, random.uniform(0.5, 10.0)),
            bursty(0.5 * high, high),
        )
    )


def _quiet(load: Load, quiet_s: float) -> Load:
    return lambda times, dice: (
        (load(times, dice) * (times < quiet_s)) + QUIET_LOAD * (times >= quiet_s)
    )


def _until(quiet_s: float, jobs: tuple[Job, ...]) -> Callable[[float], tuple[Job, ...]]:
    resting = tuple(replace(each, threads=0.0) for each in jobs)
    return lambda time_s: jobs if time_s < quiet_s else resting
