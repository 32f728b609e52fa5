# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Runs: one scenario, one policy, one seed."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from controller.core.learning.state import LearnedIndicator
from tests.plant.agent import Agent, Setup
from tests.plant.node import STEP_S, Node, Service
from tests.plant.profiles import ProfileKind
from tests.plant.requests import Load
from tests.plant.rivals import RIVALS
from tests.plant.scenarios import (
    LENGTH_S,
    OBJECTIVE_S,
    SCENARIOS,
    WARM_UP_S,
    learning_load,
)

__all__ = ("LAW", "Job", "Result", "run")

LAW = "law"
_LEARN_S = 660.0


class _Policy(Protocol):
    def step(self) -> float: ...


@dataclass(frozen=True)
class Job:
    """What is run: *policy* is ``law`` or the name of a rival."""

    scenario: str
    policy: str
    seed: int
    setup: Setup = field(default_factory=Setup)


@dataclass(frozen=True)
class Result:
    """What came out, without the warm-up.

    ``violated_percent`` is the share of seconds with a p99 above the objective, ``work_cpus`` the
    jobs' work in CPUs at the speed that each has alone, ``writes`` those per minute.
    """

    scenario: str
    policy: str
    seed: int
    violated_percent: float
    work_cpus: float
    writes: float


def run(job: Job, length_s: float = LENGTH_S, warm_up_s: float = WARM_UP_S) -> Result:
    """Run *job* and return the result, which depends on nothing else."""
    scenario = SCENARIOS[job.scenario]
    node = Node(scenario.machine, scenario.service, scenario.jobs, length_s, job.seed)
    agent: Agent | None = None
    policy: _Policy
    if job.policy == LAW:
        learned: tuple[LearnedIndicator, ...] = ()
        if job.setup.profile is ProfileKind.LEARNED:
            learned = _learn(job.seed, job.setup, job.scenario == "vm")
        policy = agent = Agent(node, job.setup, learned)
    else:
        policy = RIVALS[job.policy](node, job.setup.resctrl and scenario.machine.partitions)
    _advance(node, policy, warm_up_s)
    work, writes = float(node.work.sum()), 0 if agent is None else agent.writes
    _advance(node, policy, length_s)
    span_s = length_s - warm_up_s
    seconds = range(round(warm_up_s), round(length_s))
    figures = [node.queue.p99(second) for second in seconds]
    missed = sum(each is None or each > OBJECTIVE_S for each in figures)
    return Result(
        scenario=job.scenario,
        policy=job.policy,
        seed=job.seed,
        violated_percent=100.0 * missed / len(figures),
        work_cpus=(float(node.work.sum()) - work) / span_s,
        writes=0.0 if agent is None else (agent.writes - writes) * 60.0 / span_s,
    )


def _advance(node: Node, policy: _Policy, until_s: float) -> None:
    due_s = node.now_s
    while node.now_s < until_s - STEP_S / 2:
        if node.now_s >= due_s - STEP_S / 2:
            due_s = node.now_s + policy.step()
        node.step()


@lru_cache(maxsize=8)
def _learn(seed: int, setup: Setup, is_vm: bool) -> tuple[LearnedIndicator, ...]:
    """Return what is learned of the service while it runs alone at all loads."""
    machine = SCENARIOS["vm" if is_vm else "one-hurts"].machine
    node = Node(machine, Service(Load(learning_load)), (), _LEARN_S, 1000 + seed)
    agent = Agent(node, setup)
    _advance(node, agent, _LEARN_S)
    return agent.learned
