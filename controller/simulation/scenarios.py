# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The scenarios by name. Those of group ``main`` are the default of the command."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from controller.simulation.loads import bursty, square, steady, steps
from controller.simulation.machine import Machine
from controller.simulation.model import Character, Job, Scenario, Service

__all__ = ("CACHE", "GENTLE", "GROUPS", "ORDINARY", "SCENARIOS", "SMT", "STREAM")

_Jobs = Callable[[float], tuple[Job, ...]]

# Integer code in registers: a light neighbour on the same core.
GENTLE = Character(memory=0.02, bandwidth=0.05e9, pressure=0.2, miss_cost=0.5, smt=0.12)
# A compiler or an encoder: a fair part of the memory traffic, far from saturating it.
ORDINARY = Character(memory=0.1, bandwidth=0.8e9, pressure=0.5, miss_cost=0.5, smt=0.15)
# A copy of large arrays, like STREAM: a few CPUs saturate the memory.
STREAM = Character(
    memory=0.5, bandwidth=11e9, pressure=6.0, working_set=0.5, miss_cost=0.0, smt=0.3
)
# Vector code that fills the execution units of its core.
SMT = Character(memory=0.02, bandwidth=0.05e9, pressure=0.2, miss_cost=0.5, smt=0.6, smt_loss=0.6)
# Random reads of a table about as large as the cache.
CACHE = Character(
    memory=0.4, bandwidth=0.8e9, pressure=25.0, working_set=8.0, miss_cost=1.0, smt=0.2
)

_HARMLESS_KINDS = (GENTLE, ORDINARY)

# The kernel of a virtual machine without cpu.idle, hardware counters and resctrl.
_VM = Machine(cpus=8, threads_per_core=1, pmu=False, resctrl=False, sched_idle=False)
_NO_IDLE = Machine(sched_idle=False)
_WEB = Service()
# Short requests, so that waits of a slice hurt.
_QUICK = Service(name="quick", workers=4, work_s=1e-3, rate=2400.0, slo_s=3.5e-3)
# An objective that the service cannot keep alone at 1.4 times its CPI: a squeeze is useless.
_TIGHT = replace(_WEB, slo_s=7.2e-3)
_SENSITIVE = replace(_WEB, character=replace(_WEB.character, memory=0.8, miss_cost=2.0))
# The load and the quota in CPUs with which a service is throttled so many per cent of the time
# beside sched-idle jobs (found by trying).
_THROTTLED = {"10": (0.6, 4.2), "1": (0.4, 5.6), "0.1": (0.4, 6.6)}
_ONSET_S = 90.0


def _jobs(*characters: Character, threads: float = 8.0) -> tuple[Job, ...]:
    return tuple(
        Job(
            name=f"job-{index}",
            threads=threads,
            character=each,
            harmful=each not in _HARMLESS_KINDS,
        )
        for index, each in enumerate(characters)
    )


def _always(*characters: Character, threads: float = 8.0) -> _Jobs:
    jobs = _jobs(*characters, threads=threads)
    return lambda _: jobs


def _taking_turns(every_s: float, *turns: tuple[Job, ...]) -> _Jobs:
    return lambda time_s: turns[int(time_s / every_s) % len(turns)]


def _one_of(count: int, culprit: Character, turn: int = 0) -> tuple[Job, ...]:
    """Return *count* jobs; number *turn* is a *culprit* that gets about five CPUs."""
    often, rest = (8.0, 8.0) if count == 3 else (4.5, 1.0)
    return tuple(
        Job(
            name=f"job-{index}",
            threads=often if index == turn else rest,
            character=culprit if index == turn else GENTLE,
            harmful=index == turn,
        )
        for index in range(count)
    )


def _moving(culprit: Character, count: int, every_s: float) -> _Jobs:
    """Return jobs of which another one is the culprit every *every_s* seconds."""
    return _taking_turns(every_s, *(_one_of(count, culprit, turn) for turn in range(count)))


_HARMFUL = _always(STREAM, GENTLE, GENTLE)
_HARMLESS = _always(GENTLE, GENTLE, GENTLE)
_ORDINARY = _always(ORDINARY, ORDINARY, GENTLE)
_CALM_LOAD = steady(0.6)


def _main() -> list[Scenario]:
    base = Scenario(
        name="bandwidth",
        title="one of three jobs hurts by memory bandwidth",
        load=_CALM_LOAD,
        jobs_at=_HARMFUL,
    )
    two = _jobs(STREAM, SMT, GENTLE)
    return [
        base,
        replace(
            base,
            name="smt",
            title="one of three hurts by SMT",
            jobs_at=_always(SMT, GENTLE, GENTLE),
        ),
        replace(
            base,
            name="cache",
            title="one of three hurts by the cache",
            jobs_at=_always(CACHE, GENTLE, GENTLE),
        ),
        replace(
            base,
            name="no-resctrl",
            title="bandwidth, on a node without resctrl",
            machine=Machine(resctrl=False),
        ),
        replace(
            base,
            name="culprit-changes",
            restless=True,
            title="another job hurts every 20 s",
            jobs_at=_moving(STREAM, 3, 20.0),
        ),
        replace(
            base,
            name="character-changes",
            restless=True,
            title="one job turns harmful and harmless every 20 s",
            jobs_at=_taking_turns(
                20.0, _jobs(STREAM, GENTLE, GENTLE), _jobs(GENTLE, GENTLE, GENTLE)
            ),
        ),
        replace(
            base,
            name="load-steps",
            title="load 25 %, 90 % and back, every 30 s",
            load=steps(0.25, 0.9, every_s=30.0),
        ),
        replace(
            base,
            name="square",
            restless=True,
            title="square wave of 7 s, 30 and 80 %",
            load=square(0.3, 0.8, 7.0),
        ),
        replace(
            base,
            name="bursty",
            restless=True,
            title="bursts of 300 ms at 85 %, 50 % on average",
            load=bursty(0.5, 0.85),
        ),
        replace(
            base,
            name="sensitive",
            title="a service that waits for memory most of the time",
            services=(_SENSITIVE,),
        ),
        replace(
            base,
            name="eight-jobs",
            title="one of eight jobs hurts",
            jobs_at=_taking_turns(60.0, _one_of(8, STREAM)),
        ),
        replace(
            base,
            name="two-culprits",
            title="two of three jobs hurt, in different ways",
            jobs_at=lambda _: two,
        ),
        replace(base, name="harmless", title="no job hurts", jobs_at=_HARMLESS),
        replace(base, name="ordinary", title="no job hurts, two move data", jobs_at=_ORDINARY),
        replace(
            base,
            name="vm",
            title="virtual machine: no sched-idle, counters or resctrl",
            machine=_VM,
            load=steady(0.5),
            services=(_QUICK,),
            jobs_at=_always(GENTLE, GENTLE, GENTLE, threads=4.0),
        ),
    ]


def _own_fault() -> list[Scenario]:
    base = Scenario(name="", title="", load=steady(0.7), jobs_at=_ORDINARY)

    def slow(factor: float) -> Scenario:
        return replace(
            base,
            name=f"self-slow-{factor:g}",
            title=f"the service's own CPI times {factor:g} after 90 s, objective 7.2 ms",
            load=_CALM_LOAD,
            services=(_TIGHT,),
            slow_at=lambda now: factor if now >= _ONSET_S else 1.0,
        )

    def throttled(percent: str, jobs_at: _Jobs, beside: str) -> Scenario:
        load, quota = _THROTTLED[percent]
        service = replace(_WEB, quota_cpus=quota)
        title = f"throttled {percent} % of the time by its own quota, {beside}"
        return replace(
            base,
            name=f"throttled-{percent}",
            title=title,
            load=steady(load),
            services=(service,),
            jobs_at=jobs_at,
        )

    return [
        slow(1.4),
        slow(1.8),
        replace(
            base,
            name="overload",
            title="load 70 %, and 140 % after 90 s",
            load=lambda times, _: np.where(times >= _ONSET_S, 1.4, 0.7),
        ),
        throttled("10", _ORDINARY, "ordinary jobs"),
        throttled("1", _HARMFUL, "one job hurts"),
        throttled("0.1", _HARMFUL, "one job hurts"),
        replace(
            base,
            name="steal",
            title="load 70 %, the hypervisor takes 25 % after 90 s",
            steal_at=lambda now: 0.25 if now >= _ONSET_S else 0.0,
        ),
    ]


def _many() -> list[Scenario]:
    base = Scenario(name="", title="", load=_CALM_LOAD, jobs_at=_HARMFUL)
    return [
        replace(
            base,
            name=f"pods-{count}",
            title=f"{count} jobs of one thread, all hurt by bandwidth",
            jobs_at=_always(*[STREAM] * count, threads=1.0),
        )
        for count in (1, 10, 100, 1000)
    ]


def _who() -> list[Scenario]:
    """Return the scenarios that ask for the culprit: kind of harm, number of jobs, changing."""
    base = Scenario(name="", title="", load=_CALM_LOAD, jobs_at=_HARMFUL)
    found = []
    for kind, character in (("bandwidth", STREAM), ("smt", SMT), ("cache", CACHE)):
        for count in (3, 8):
            name, title = f"who-{kind}-{count}", f"one of {count} jobs hurts by {kind}"
            steady_jobs = _taking_turns(60.0, _one_of(count, character))
            moving = _moving(character, count, 60.0)
            found += [
                replace(base, name=name, title=title, jobs_at=steady_jobs),
                replace(
                    base,
                    name=f"{name}-changing",
                    title=f"{title}, another one every 60 s",
                    jobs_at=moving,
                ),
            ]
    for count in (3, 8):
        name, title = f"who-wait-{count}", f"one of {count} jobs hurts by waits for a CPU"
        wait = replace(base, machine=_NO_IDLE, services=(_QUICK,))
        jobs_at = _taking_turns(60.0, _busy_one_of(count, 0))
        moving = _taking_turns(60.0, *(_busy_one_of(count, turn) for turn in range(count)))
        found += [
            replace(wait, name=name, title=title, jobs_at=jobs_at),
            replace(
                wait,
                name=f"{name}-changing",
                title=f"{title}, another one every 60 s",
                jobs_at=moving,
            ),
        ]
    return [*found, _two_services()]


def _busy_one_of(count: int, turn: int) -> tuple[Job, ...]:
    """Return jobs of one thread, and number *turn* with one for every CPU."""
    return tuple(
        Job(
            name=f"job-{index}",
            threads=16.0 if index == turn else 1.0,
            character=GENTLE,
            harmful=index == turn,
        )
        for index in range(count)
    )


def _two_services() -> Scenario:
    """Return a strict service that only job 1 hurts, and a tolerant one that only job 0 slows."""
    strict = Service(
        name="strict",
        workers=4,
        rate=1500.0,
        character=replace(_WEB.character, memory=0.03, smt_loss=1.2),
    )
    tolerant = Service(
        name="tolerant",
        workers=4,
        rate=1500.0,
        slo_s=60e-3,
        character=replace(_WEB.character, memory=0.6, smt_loss=0.1),
    )
    stream, loud, gentle = _jobs(STREAM, SMT, GENTLE)
    jobs = (replace(stream, harmful=False), loud, gentle)
    return Scenario(
        name="who-two-services",
        title="job 0 slows a tolerant service only, job 1 hurts a strict one",
        load=_CALM_LOAD,
        jobs_at=lambda _: jobs,
        services=(strict, tolerant),
    )


_GROUPS = {"main": _main(), "own-fault": _own_fault(), "many": _many(), "who": _who()}
GROUPS: Mapping[str, tuple[str, ...]] = {
    group: tuple(each.name for each in members) for group, members in _GROUPS.items()
}
SCENARIOS: Mapping[str, Scenario] = {
    each.name: each for members in _GROUPS.values() for each in members
}
