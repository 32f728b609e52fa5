# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A profile with nothing but the objective of the service, typed as docs/PROFILES.md shows it."""

from dataclasses import replace
from functools import partial
from pathlib import Path
import re

import pytest

from controller.config.fields import check
from controller.config.models import ProfileModel
from controller.config.profile import build_profile
from controller.config.yaml_document import parse_document
from controller.core.decision import ChannelState
from controller.core.model import Channel, Snapshot
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


class Losing(Planned):
    """A planner that has no value of the service's figure any more after *until_s*."""

    def __init__(self, plant: Plant, until_s: float, age_ns: int | None) -> None:
        super().__init__(plant, [documented(plant.scenario.services[0].slo_s)])
        self._until_s, self._age_ns = until_s, age_ns

    def measure(self) -> Snapshot:
        snapshot = super().measure()
        if self._plant.time_s < self._until_s:
            return snapshot
        lost = (each._replace(value=None, age_ns=self._age_ns) for each in snapshot.services)
        return replace(snapshot, services=tuple(lost))


# A source that answers without a value, and one that does not answer any more.
@pytest.mark.parametrize("age_ns", [0, None])
def test_a_service_that_works_on_without_a_figure_stays_protected(age_ns: int | None) -> None:
    policies: list[Losing] = []

    def losing(plant: Plant) -> Losing:
        policies.append(Losing(plant, 50.0, age_ns))
        return policies[-1]

    lost = run(Task(SCENARIOS["no-resctrl"], "", losing, 1), 150, 50)
    assert lost.violating <= 0.05
    plan = policies[0].plan
    assert plan is not None
    assert {each.state for each in plan.demands if each.service} == {ChannelState.HOLD}
