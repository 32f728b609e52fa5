# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Profiles with learned sweet points as text, and the reasons for none."""

from collections import Counter
from dataclasses import replace

import pytest

from controller.agent.learned_profile import find_obstacle, profile_text
from controller.agent.observation import Observation
from controller.config.fields import check
from controller.config.indicator import learned_specs
from controller.config.models import ProfileModel
from controller.config.profile import build_profile
from controller.config.yaml_document import parse_document
from controller.core.learning.quiet import Disturbance
from controller.core.learning.state import LearnedIndicator, State
from controller.core.model import IndicatorName
from controller.core.settings import IndicatorSpec, Profile
from controller.core.units import NS_PER_SEC
from tests.support.loops.closed_loop import TICK_NS, make_settings

SPECS = learned_specs(TICK_NS)
RUNQ, PACKETS, CPI = IndicatorName.RUNQ_P99, IndicatorName.CPU_PER_PACKET, IndicatorName.CPI


def learned(
    name: IndicatorName, values: dict[float, float], windows: int = 100
) -> LearnedIndicator:
    """Return what is known after *windows* windows with each of *values*, by load."""
    (spec,) = (spec for spec in SPECS if spec.name is name)
    state = State("cpu", "", spec.tolerance)
    for load, value in values.items():
        for _ in range(windows):
            state.add(value, load, spec.resolution, NS_PER_SEC)
    return state.record("web", name)


def observed(*known: LearnedIndicator, service: str = "web", **counts: Counter[str]) -> Observation:
    observation = Observation(service, make_settings().profiles["default"], SPECS)
    observation.learned = {each.indicator: each for each in known}
    observation.disturbances = {each.indicator: Counter({"": 500}) for each in known}
    observation.disturbances |= {IndicatorName(name): each for name, each in counts.items()}
    return observation


def parsed(text: str) -> Profile:
    document = parse_document(text, "learned")
    return build_profile(document, check(document, ProfileModel), TICK_NS, evicts=False)


def spec_of(profile: Profile, name: IndicatorName) -> IndicatorSpec:
    (spec,) = (spec for spec in profile.indicators if spec.name is name)
    return spec


def test_the_text_is_a_profile_with_the_learned_sweet_points() -> None:
    packets = learned(PACKETS, {2_000.0: 12e3, 16_000.0: 6e3})
    profile = parsed(profile_text(observed(learned(RUNQ, {0.5: 1e6}), packets), "some cpu"))
    assert profile.name == "web"
    assert {spec.name for spec in profile.indicators} == {RUNQ, PACKETS}
    assert spec_of(profile, RUNQ).sweet_point == pytest.approx(2e6, rel=0.05)
    by_rate = spec_of(profile, PACKETS)
    assert by_rate.sweet_point == pytest.approx(15e3, rel=0.05)
    (busy,) = by_rate.bins
    assert busy.sweet_point == pytest.approx(7.5e3, rel=0.05)
    assert 2_000 < busy.above < 16_000
    assert not any(spec.learn for spec in profile.indicators)


def test_the_evidence_is_in_the_comments() -> None:
    short = learned(CPI, {1.0: 1.2}, windows=20)
    counts = Counter({Disturbance.NO_LOAD: 80, "": 20})
    text = profile_text(observed(learned(RUNQ, {0.5: 1e6}), short, cpi=counts), "some cpu")
    assert "# Learned from the service web on some cpu." in text
    assert "# at a load of 500mcpu to 707mcpu: median " in text
    assert ", 100 windows" in text
    assert "# allowed above the median: 100%" in text
    assert "# cpi: not sure after 20 undisturbed windows; the service hardly runs" in text
    assert "# psi_io: this host or service has no source for it" in text


def test_one_sweet_point_for_all_loads_is_that_of_the_worst_load() -> None:
    text = profile_text(observed(learned(RUNQ, {0.5: 1e6, 4.0: 5e6})), "cpu")
    spec = spec_of(parsed(text), RUNQ)
    assert spec.bins == ()
    assert spec.sweet_point == pytest.approx(10e6, rel=0.05)


@pytest.mark.parametrize("service", ["Shop/Web_1", "---", "x" * 300, "a\nname: b\n#", "ünïcode"])
def test_any_name_of_a_service_gives_a_valid_profile(service: str) -> None:
    text = profile_text(observed(learned(RUNQ, {0.5: 1e6}), service=service), "c\npu")
    assert len(parsed(text).indicators) == 1


def test_beside_a_hog_there_is_no_profile_although_waits_are_sure() -> None:
    """Under sched-idle a hog inflicts no wait, but what it does to the caches is not normal."""
    found = observed(learned(RUNQ, {0.5: 1e6}))
    mostly = replace(found, neighbours=Counter({Disturbance.BEST_EFFORT: 475}), ticks=500)
    assert find_obstacle(mostly) == "best-effort work is running in 95% of the time"
    episode = replace(mostly, neighbours=Counter({Disturbance.BEST_EFFORT: 200}))
    assert find_obstacle(episode) == ""


def test_why_there_is_no_profile() -> None:
    assert "not found" in find_obstacle(observed())
    few = observed(learned(RUNQ, {0.5: 1e6}, windows=10))
    assert find_obstacle(few).startswith("nothing is sure yet: at least 60 s")
    idle = observed(runq_p99=Counter({Disturbance.NO_LOAD: 100}))
    assert find_obstacle(idle).endswith("; most of the time the service hardly runs")
    assert find_obstacle(observed(learned(RUNQ, {0.5: 1e6}))) == ""
