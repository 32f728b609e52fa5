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
from controller.core.model import Channel
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
