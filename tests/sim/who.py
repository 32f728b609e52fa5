# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Runs on a node at request level that ask whether the right job is limited."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from controller.core.model import Channel, IndicatorName
from controller.core.settings import LawSettings
from controller.simulation.plant import Plant
from controller.simulation.policies.fixed import Fixed
from controller.simulation.policies.planned import Planned
from controller.simulation.policies.policy import Policy
from controller.simulation.scenarios import SCENARIOS
from tests.support.loops.closed_loop import LAW, make_settings, make_spec

__all__ = ("Phase", "WhoRun", "observe")

# Time to find a culprit, and the least part of a phase in which a job must be limited to count:
# micro-probes alone are less.
_NAMED_S = 5
_LEAST_CUT = 0.1
_STEPS_PER_S = 10
_OF_OBJECTIVE = 0.8


class Phase(NamedTuple):
    """The time from one change of the jobs to the next.

    ``cut`` is the part of what it could use that each job's quota took, on average from five
    seconds on. ``right``: a harmful job has the largest; ``None``: no job was limited.
    """

    cut: tuple[float, ...]
    right: bool | None


class WhoRun(NamedTuple):
    """``innocent_work`` is that of harmless jobs in CPUs, ``violating`` the part of all seconds
    above the objective, ``limited`` those in which any job had a quota, and ``writes_per_min`` of
    the quota of the job with the most."""

    phases: tuple[Phase, ...]
    innocent_work: float
    violating: float
    limited: float
    writes_per_min: float


def observe(
    name: str,
    seed: int,
    seconds: int,
    law: LawSettings | None = LAW,
    resctrl: bool = False,
) -> WhoRun:
    """Run scenario *name* with the planner, which knows the objective only.

    Without a *law* nothing is limited; jobs have sched-idle where the node has it.
    """
    plant = Plant(SCENARIOS[name], seed, seconds)
    policy = Fixed(plant, idle=True) if law is None else _planned(plant, law, resctrl)
    cuts: list[list[np.ndarray[tuple[int], np.dtype[np.float64]]]] = [[]]
    kinds = [_harmful(plant)]
    violating = limited = 0
    work, innocent = plant.counters.work.copy(), 0.0
    writes = np.zeros(len(plant.jobs))
    since = 0
    for second in range(seconds):
        if _harmful(plant).tolist() != kinds[-1].tolist():
            kinds.append(_harmful(plant))
            cuts.append([])
            since = second
        for step in range(_STEPS_PER_S):
            if step % 2 == 0:
                before = plant.knobs.quota.copy()
                policy.step()
                writes += before != plant.knobs.quota
            plant.advance()
        done, work = plant.counters.work - work, plant.counters.work.copy()
        innocent += float(done[~kinds[-1]].sum())
        violating += (plant.p99_s(0, 1.0) or 0.0) > plant.scenario.services[0].slo_s
        parts = _parts(plant)
        limited += bool(parts.min() < 1.0)
        if second - since >= _NAMED_S:
            cuts[-1].append(1.0 - parts)
    return WhoRun(
        tuple(_phase(each, kind) for each, kind in zip(cuts, kinds, strict=True) if each),
        innocent / seconds,
        violating / seconds,
        limited / seconds,
        float(writes.max()) * 60 / seconds,
    )


def _phase(
    cuts: list[np.ndarray[tuple[int], np.dtype[np.float64]]],
    harmful: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> Phase:
    cut = np.mean(cuts, axis=0)
    right = None
    if cut.max() >= _LEAST_CUT and harmful.any():
        right = bool(harmful[int(cut.argmax())])
    return Phase(tuple(cut.tolist()), right)


def _harmful(plant: Plant) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array([each.harmful for each in plant.scenario.jobs_at(plant.time_s)])


def _parts(plant: Plant) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the part of what it could use that the quota leaves each job."""
    threads = np.array([each.threads for each in plant.jobs])
    usable = np.minimum(threads, plant.machine.cpus)
    parts: np.ndarray[tuple[int], np.dtype[np.float64]]
    parts = np.minimum(1.0, plant.knobs.quota / usable)
    return parts


def _planned(plant: Plant, law: LawSettings, resctrl: bool) -> Policy:
    default = make_settings(sched_idle=True).profiles["default"]
    profiles = [
        replace(
            default,
            channels=(Channel.CACHE,),
            indicators=(
                replace(
                    make_spec(_OF_OBJECTIVE * service.slo_s * 1e9),
                    name=IndicatorName.SERVICE,
                    channel=Channel.CACHE,
                    min_samples=0,
                ),
            ),
        )
        for service in plant.scenario.services
    ]
    return Planned(plant, profiles, resctrl, law=law)
