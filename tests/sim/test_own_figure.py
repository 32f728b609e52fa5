# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A profile with nothing but the objective of the service, typed as docs/PROFILES.md shows it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
import re

import pytest

from controller.config.fields import check
from controller.config.models import ProfileModel
from controller.config.profile import build_profile
from controller.config.yaml_document import parse_document
from controller.core.decision import ChannelState, IndicatorStatus
from controller.core.model import Channel, ServiceReading, Snapshot
from controller.core.settings import Profile
from controller.simulation.plant import Plant
from controller.simulation.policies.planned import TICK_NS, Planned
from controller.simulation.run import Run, Task, run
from controller.simulation.scenarios import SCENARIOS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/PROFILES.md"
_SHOWN = r"^indicators:\n  service: {sweet_point: {objective: 10ms}}.*$"


def documented(objective_s: float) -> Profile:
    """Return the documented profile with another objective."""
    shown = re.search(_SHOWN, DOCUMENT.read_text(), re.MULTILINE)
    assert shown is not None
    text = f"name: web\n{shown.group()}".replace("10ms", f"{objective_s * 1e3:.3f}ms")
    document = parse_document(text, "PROFILES.md")
    return build_profile(document, check(document, ProfileModel), TICK_NS, evicts=True)


def planned(plant: Plant, channels: tuple[Channel, ...]) -> Planned:
    profile = documented(plant.scenario.services[0].slo_s)
    assert profile.channels == tuple(Channel)
    return Planned(plant, [replace(profile, channels=channels)])


def simulate(name: str, channels: tuple[Channel, ...]) -> Run:
    return run(Task(SCENARIOS[name], "", partial(planned, channels=channels), 1), 100, 50)


# Of these, waits for a CPU are the harm in "vm", and memory or the core's other thread elsewhere.
@pytest.mark.parametrize("name", ["no-resctrl", "smt", "vm"])
def test_it_has_the_whole_law(name: str) -> None:
    as_typed = simulate(name, tuple(Channel))
    assert as_typed.violating <= 0.02
    assert as_typed.seconds == simulate(name, (Channel.CACHE,)).seconds


class Failing(Planned):
    """A planner whose service's figure is *failing* after *until_s*."""

    def __init__(
        self,
        plant: Plant,
        until_s: float,
        failing: Callable[[ServiceReading], ServiceReading],
    ) -> None:
        super().__init__(plant, [documented(plant.scenario.services[0].slo_s)])
        self._until_s, self._failing = until_s, failing
        self.statuses: list[tuple[float, IndicatorStatus]] = []

    def measure(self) -> Snapshot:
        snapshot = super().measure()
        if self._plant.time_s < self._until_s:
            return snapshot
        return replace(snapshot, services=tuple(map(self._failing, snapshot.services)))

    def step(self) -> None:
        super().step()
        if self.plan is not None:
            self.statuses += [(self._plant.time_s, each.status) for each in self.plan.loops]


def fail(failing: Callable[[ServiceReading], ServiceReading]) -> tuple[Run, Failing]:
    """Run a node whose service's figure is *failing* after 50 s."""
    policies: list[Failing] = []

    def make(plant: Plant) -> Failing:
        policies.append(Failing(plant, 50.0, failing))
        return policies[-1]

    return run(Task(SCENARIOS["no-resctrl"], "", make, 1), 150, 50), policies[0]


# A source that answers without a value, and one that does not answer any more.
@pytest.mark.parametrize("age_ns", [0, None])
def test_a_service_that_works_on_without_a_figure_stays_protected(age_ns: int | None) -> None:
    lost, policy = fail(lambda each: each._replace(value=None, age_ns=age_ns))
    assert lost.violating <= 0.05
    assert policy.plan is not None
    assert {each.state for each in policy.plan.demands if each.service} == {ChannelState.HOLD}


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_figure_that_jumps_alone_is_told_and_does_not_steer(factor: float) -> None:
    """Like that of a source that begins to answer in another unit."""
    wrong, policy = fail(
        lambda each: each._replace(value=None if each.value is None else factor * each.value)
    )
    assert wrong.violating <= 0.05
    told = [time_s for time_s, status in policy.statuses if status is IndicatorStatus.IMPLAUSIBLE]
    assert told
    assert 50.0 <= told[0] <= 60.0
    assert policy.statuses[-1][1] is IndicatorStatus.IMPLAUSIBLE
