# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One run: a policy on the plant of a scenario with one seed."""

from dataclasses import dataclass

import numpy as np

from controller.simulation.conditions import STEP_S, Knobs
from controller.simulation.model import Scenario
from controller.simulation.plant import Plant
from controller.simulation.policies.policy import Factory

__all__ = ("Run", "Second", "Task", "run")

_STEPS_PER_S = round(1.0 / STEP_S)
# Time to find a culprit, and how much lower its quota must be than those of the others.
_NAMED_S = 5.0
_MORE = 0.95


@dataclass(frozen=True, slots=True)
class Second:
    """One second: the highest p99 of a service relative to its objective, and the jobs' work.

    ``job_work_cpus`` is in CPUs that each would be alone on a core. ``p99_ratio`` of ``None``: no
    request finished. ``right``: a harmful job has a lower quota than all others, relative to what
    it could use; ``None`` where no job has a quota that limits it, or none or all are harmful, or
    that changed less than five seconds ago.
    """

    p99_ratio: float | None
    job_work_cpus: tuple[float, ...]
    right: bool | None = None

    @property
    def work_cpus(self) -> float:
        """The work of all jobs, in effective CPUs."""
        return sum(self.job_work_cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The result of a run.

    ``writes`` is the number of knobs that changed after the warm-up, ``evicted`` the jobs that were
    evicted at any time, with whether they were harmful then.
    """

    scenario: str
    policy: str
    seed: int
    seconds: tuple[Second, ...]
    writes: int
    warm_up: int
    evicted: tuple[tuple[str, bool], ...] = ()

    @property
    def counted(self) -> tuple[Second, ...]:
        """The seconds after the warm-up."""
        return self.seconds[self.warm_up :]

    @property
    def violating(self) -> float:
        """Share of seconds in which a service exceeded its objective."""
        counted = self.counted
        return sum((each.p99_ratio or 0.0) > 1.0 for each in counted) / len(counted)

    @property
    def job_work_cpus(self) -> tuple[float, ...]:
        """Mean work of each job, in effective CPUs."""
        columns = zip(*(each.job_work_cpus for each in self.counted), strict=True)
        return tuple(float(np.mean(column)) for column in columns)

    @property
    def work_cpus(self) -> float:
        """Mean work of the jobs, in effective CPUs."""
        return sum(self.job_work_cpus)

    @property
    def writes_per_min(self) -> float:
        """Knobs written per minute, of all jobs together."""
        return self.writes * 60.0 / len(self.counted)

    @property
    def right(self) -> float | None:
        """Share of the seconds with a limited job in which the right one was limited most."""
        known = [each.right for each in self.counted if each.right is not None]
        return sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True)
class Task:
    """A run to do."""

    scenario: Scenario
    policy: str
    factory: Factory
    seed: int


def run(task: Task, seconds: int, warm_up: int) -> Run:
    """Return the result of *task* over *seconds*, of which the first *warm_up* do not count.

    :raises ValueError: nothing would be left to count.
    """
    if seconds <= warm_up:
        raise ValueError(f"{seconds} s are not longer than the warm-up of {warm_up} s")
    plant = Plant(task.scenario, task.seed, seconds)
    policy = task.factory(plant)
    every = max(1, round(policy.interval_s / STEP_S))
    results: list[Second] = []
    evicted: dict[int, tuple[str, bool]] = {}
    writes, work = 0, plant.counters.work.copy()
    for step in range(seconds * _STEPS_PER_S):
        if step % every == 0:
            before = _values(plant.knobs)
            policy.step()
            if step >= warm_up * _STEPS_PER_S:
                writes += len(set(_values(plant.knobs)) - set(before))
            for index in np.flatnonzero(plant.knobs.evicted).tolist():
                job = plant.jobs[index]
                evicted.setdefault(index, (job.name, job.harmful))
        plant.advance()
        if (step + 1) % _STEPS_PER_S == 0:
            done = plant.counters.work - work
            work = plant.counters.work.copy()
            results.append(Second(_worst(plant), tuple(done.tolist()), _is_right(plant)))
    return Run(
        scenario=task.scenario.name,
        policy=task.policy,
        seed=task.seed,
        seconds=tuple(results),
        writes=writes,
        warm_up=warm_up,
        evicted=tuple(evicted.values()),
    )


def _is_right(plant: Plant) -> bool | None:
    """Return whether a harmful job is limited most; see ``Second.right``."""
    now = plant.jobs
    harmful = np.array([each.harmful for each in now])
    before = [each.harmful for each in plant.scenario.jobs_at(max(0.0, plant.time_s - _NAMED_S))]
    if harmful.all() or not harmful.any() or before != harmful.tolist():
        return None
    threads = np.array([max(each.threads, 1e-9) for each in now])
    parts = np.minimum(1.0, plant.knobs.quota / np.minimum(threads, plant.machine.cpus))
    if parts.min() >= 1.0:
        return None
    return bool(parts[harmful].min() < _MORE * parts[~harmful].min())


def _worst(plant: Plant) -> float | None:
    ratios = [
        p99 / service.slo_s
        for index, service in enumerate(plant.scenario.services)
        if (p99 := plant.p99_s(index, 1.0)) is not None
    ]
    return max(ratios, default=None)


def _values(knobs: Knobs) -> list[tuple[str, int, object]]:
    """Return every knob with its value; those that are one write in the kernel are one value."""
    values: list[tuple[str, int, object]] = [
        ("quota", -1, (knobs.all_quota, knobs.all_period)),
        ("cpuset", -1, knobs.cpuset),
        ("ways", -1, knobs.ways),
        ("mba", -1, knobs.mba),
        ("cookie", -1, knobs.cookie),
    ]
    quotas = zip(knobs.quota.tolist(), knobs.period.tolist(), strict=True)
    values += [("quota", index, quota) for index, quota in enumerate(quotas)]
    values += [("idle", index, idle) for index, idle in enumerate(knobs.idle.tolist())]
    values += [("weight", index, weight) for index, weight in enumerate(knobs.weight.tolist())]
    return values
