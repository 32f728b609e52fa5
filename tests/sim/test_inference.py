# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The shipped profile of servers that decode tokens, beside a transcoder.

A request of the simulated service is one token, so its latency is the time per token.
"""

from collections.abc import Callable
from dataclasses import replace
from statistics import mean

import pytest

from controller.config.fields import check
from controller.config.models import ProfileModel
from controller.config.profile import build_profile
from controller.config.yaml_document import read_document
from controller.core.model import Snapshot
from controller.core.settings import Profile
from controller.host.package_data import profiles_dir
from controller.simulation.loads import steady
from controller.simulation.machine import Machine
from controller.simulation.model import Character, Job, Scenario, Service
from controller.simulation.plant import Plant
from controller.simulation.policies.planned import TICK_NS, Planned
from controller.simulation.policies.policy import Policy
from controller.simulation.run import Run, Task, run


def shipped() -> Profile:
    document = read_document(profiles_dir() / "inference.yaml")
    return build_profile(document, check(document, ProfileModel), TICK_NS, evicts=True)


# Half of its time alone it waits for memory.
DECODER = Service(
    name="decoder",
    workers=8,
    work_s=20e-3,
    work_cv=0.1,
    rate=300.0,
    slo_s=40e-3,
    character=Character(
        memory=0.5, bandwidth=1.5e9, pressure=2.0, working_set=6.0, miss_cost=1.8, smt=0.2
    ),
)
# It moves frames through the cache, with vector code on the other thread of each core. With it on
# all CPUs the p99 of a token is 3.4 times as long.
TRANSCODER = Character(
    memory=0.2, bandwidth=1.5e9, pressure=5.0, working_set=4.0, miss_cost=0.5, smt=0.35
)
MEMORY = Machine(resctrl=False)
# Without sched-idle the decoder waits behind the slices of the transcoder too.
RUN_QUEUE = replace(MEMORY, sched_idle=False)
THREADS = 16.0


class Told(Planned):
    """The planner with the profile, and its verdicts; *asked*: there is a source of the figure."""

    def __init__(self, plant: Plant, asked: bool) -> None:
        super().__init__(plant, [shipped()])
        self._asked = asked
        self.verdicts: list[str] = []

    def measure(self) -> Snapshot:
        snapshot = super().measure()
        return snapshot if self._asked else replace(snapshot, services=())

    def step(self) -> None:
        super().step()
        if self.plan is not None:
            self.verdicts += [each.text for each in self.plan.verdicts]


class Nothing:
    """A node without a policy."""

    interval_s = 1.0

    def __init__(self, plant: Plant) -> None:
        pass

    def step(self) -> None:
        pass


def decode(machine: Machine, threads: float, make: Callable[[Plant], Policy]) -> Run:
    jobs = (Job(name="transcoder", threads=threads, character=TRANSCODER, harmful=True),)
    scenario = Scenario(
        name="decode",
        title="",
        load=steady(0.4),
        jobs_at=lambda _: jobs,
        services=(DECODER,),
        machine=machine,
    )
    return run(Task(scenario, "", make, 1), 100, 50)


def token_ratio(found: Run) -> float:
    """Return the mean of the p99 of the time per token, relative to the objective."""
    return mean(each.p99_ratio or 0.0 for each in found.counted)


def controlled(machine: Machine, asked: bool) -> tuple[Run, Told]:
    """Return the run beside the transcoder with the profile, and its policy."""
    policies: list[Told] = []

    def make(plant: Plant) -> Policy:
        policies.append(Told(plant, asked))
        return policies[-1]

    return decode(machine, THREADS, make), policies[0]


@pytest.fixture(scope="module")
def beside() -> float:
    """The time per token beside the transcoder without a policy."""
    return token_ratio(decode(MEMORY, THREADS, Nothing))


def test_the_transcoder_costs_more_than_half_of_the_speed(beside: float) -> None:
    alone = token_ratio(decode(MEMORY, 0.0, Nothing))
    assert alone < 1.0 < 2 * alone < beside


@pytest.mark.parametrize("machine", [MEMORY, RUN_QUEUE], ids=["memory", "run queue"])
def test_the_profile_brings_the_speed_back(machine: Machine) -> None:
    found, _ = controlled(machine, asked=True)
    assert found.violating <= 0.05
    assert token_ratio(found) < 1.0


def test_without_a_source_only_waits_for_a_cpu_are_controlled(beside: float) -> None:
    by_queue, told = controlled(RUN_QUEUE, asked=False)
    assert token_ratio(by_queue) < beside / 2
    # The threads that feed the decoder wait for a CPU: the cause is named without any figure.
    assert any(each.startswith("slow (best-effort transcoder): ") for each in told.verdicts)
    by_memory, told = controlled(MEMORY, asked=False)
    # CPI is never learned: the transcoder never pauses.
    assert by_memory.violating > 0.9
    assert not told.verdicts
