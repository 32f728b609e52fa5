# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The policies by name, with their settings and the settings among which the best are searched."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from controller.config.fields import check
from controller.config.models import ProfileModel
from controller.config.profile import build_profile
from controller.config.sections.law import WHOLE_LAW
from controller.config.yaml_document import Document, parse_document, read_document
from controller.core.settings import LawSettings, Profile
from controller.host.package_data import profiles_dir
from controller.simulation.machine import NORMAL_WEIGHT
from controller.simulation.plant import Plant
from controller.simulation.policies.fixed import Fixed
from controller.simulation.policies.heracles import Heracles, HeraclesSettings
from controller.simulation.policies.katalyst import Katalyst, KatalystSettings
from controller.simulation.policies.koordinator import Koordinator, KoordinatorSettings
from controller.simulation.policies.parties import Parties
from controller.simulation.policies.planned import TICK_NS, Planned
from controller.simulation.policies.policy import Factory, Policy
from controller.simulation.policies.rubik import Rubik, RubikSettings

__all__ = ("ORACLE", "OURS", "SCHED_IDLE", "Entry", "for_objective", "policies")

OURS = "sweetpoint"
SCHED_IDLE = "sched-idle"
ORACLE = "oracle"

_CPI = """
name: cpi
indicators:
  runq_delay_p99: {sweet_point: 4ms, min_samples: 0}
  runq_p99: {sweet_point: 4ms}
  cpi: {sweet_point: 1.3}
"""
# Knows the objective of its service and nothing else, as docs/PROFILES.md shows it.
_OBJECTIVE = """
name: objective
indicators:
  service: {{sweet_point: {{objective: {objective_ms:.3f}ms}}}}
"""

_SettingsT = TypeVar(
    "_SettingsT", KoordinatorSettings, KatalystSettings, HeraclesSettings, RubikSettings
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A policy: a line with its settings, and how it is made for a plant.

    ``variants`` are the same with other settings, by these settings in words.
    """

    title: str
    factory: Factory
    variants: Mapping[str, Factory] = field(default_factory=dict)


def policies(profile: Path | None = None) -> Mapping[str, Entry]:
    """Return all policies by name; *profile* is a file that replaces the shipped default.

    The oracle has the settings of sched-idle, until its quotas are found for a scenario.

    :raises ConfigError: the file cannot be read or is not a valid profile.
    """
    return {
        "none": Entry(
            title="equal CPU weights, no limit", factory=partial(Fixed, weight=NORMAL_WEIGHT)
        ),
        "shares": Entry(title="weight 2 for jobs, as kubelet sets it", factory=Fixed),
        SCHED_IDLE: Entry(title="cpu.idle of jobs, no limit", factory=partial(Fixed, idle=True)),
        "constant": Entry(
            title="sched-idle, and a quota of half of the CPUs for all jobs",
            factory=partial(_constant, part=0.5),
            variants={
                f"{part:.0%}, {period_ms} ms": partial(
                    _constant, part=part, period_s=period_ms / 1e3
                )
                for part in (0.03, 0.06, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
                for period_ms in (10, 100)
            },
        ),
        **_published(),
        **_own(profile),
        ORACLE: Entry(
            title="sched-idle, and the best constant quota of each job, found by search",
            factory=partial(Fixed, idle=True),
        ),
    }


def _published() -> dict[str, Entry]:
    koordinator, katalyst = KoordinatorSettings(), KatalystSettings()
    tuned = RubikSettings(sample_s=1, judge_s=5, history=30, window=30, outlier_s=10)
    return {
        "koordinator": Entry(
            title="CPUSuppress, cpuset, 65 %, kubelet's weight",
            factory=partial(Koordinator, settings=koordinator),
            variants=_variants(
                Koordinator,
                *(
                    KoordinatorSettings(
                        threshold=percent / 100, cpuset=cpuset, idle=True, ways=ways, mba=mba
                    )
                    for percent in range(50, 105, 5)
                    for cpuset in (True, False)
                    for ways, mba in ((1.0, 100.0), (0.3, 30.0))
                ),
            ),
        ),
        "katalyst-canonical": Entry(
            title="need = 1.25 of the use, reserve 4 CPUs, sched-idle",
            factory=partial(Katalyst, settings=katalyst),
        ),
        "katalyst-pid": Entry(
            title="rama: waiting 460 ms/s, use 80 %, reserve 0, sched-idle",
            factory=partial(Katalyst, settings=replace(katalyst, rama=True)),
            variants=_variants(
                Katalyst,
                *(
                    KatalystSettings(rama=True, indicators=(("usage", use), *others))
                    for use in (0.4, 0.5, 0.6, 0.7, 0.8)
                    for others in ((("sched_wait", 460.0),), (("cpi", 1.2),), (("cpi", 1.3),))
                ),
            ),
        ),
        "heracles": Entry(
            title="latency loop 15 s, pause 300 s, sched-idle",
            factory=Heracles,
            variants=_variants(
                Heracles,
                *(
                    HeraclesSettings(top_s=top_s, cooldown_s=pause_s)
                    for top_s in (1, 2, 5, 15)
                    for pause_s in (5, 30, 300)
                ),
            ),
        ),
        "parties": Entry(title="100 ms, slack 5 and 20 %, sched-idle", factory=Parties),
        "rubik": Entry(
            title="dynCache 1 s, CPI as published (an hour of samples), sched-idle",
            factory=Rubik,
            variants=_variants(
                Rubik,
                *(
                    replace(tuned, score=score, cap_s=cap_s, cache=cache)
                    for score in (0.15, 0.35)
                    for cap_s in (30, 300)
                    for cache in (True, False)
                ),
            ),
        ),
    }


def _own(profile: Path | None) -> dict[str, Entry]:
    own = _build(read_document(profile or profiles_dir() / "default.yaml"))
    cpi = _build(parse_document(_CPI, "simulation"))
    return {
        OURS: Entry(
            title=f"the planner with {profile or 'the shipped default profile'}",
            factory=partial(_planned, profile=own),
        ),
        f"{OURS}-cpi": Entry(
            title="the planner with a sweet point of 1.3 for CPI, quota only",
            factory=partial(_planned, profile=cpi, resctrl=False),
        ),
        f"{OURS}-cpi-resctrl": Entry(
            title="the same with cache ways and MBA", factory=partial(_planned, profile=cpi)
        ),
        f"{OURS}-cpi-cookies": Entry(
            title="the same with core scheduling (mode auto) as well",
            factory=partial(_planned, profile=cpi, cookies=True),
        ),
        f"{OURS}-objective": Entry(
            title="the planner with the objective of the service's p99, and no other number",
            factory=for_objective,
        ),
    }


def _constant(plant: Plant, part: float, period_s: float = 0.1) -> Policy:
    return Fixed(plant, idle=True, quota=part * plant.machine.cpus, period_s=period_s)


def _variants(
    policy: Callable[[Plant, _SettingsT], Policy], *settings: _SettingsT
) -> Mapping[str, Factory]:
    return {
        ", ".join(f"{name}={getattr(each, name)}" for name in each.__slots__): partial(
            _with_settings, policy=policy, settings=each
        )
        for each in settings
    }


def _with_settings(
    plant: Plant, policy: Callable[[Plant, _SettingsT], Policy], settings: _SettingsT
) -> Policy:
    return policy(plant, settings)


def _planned(plant: Plant, profile: Profile, resctrl: bool = True, cookies: bool = False) -> Policy:
    return Planned(plant, [profile] * len(plant.scenario.services), resctrl, cookies)


def for_objective(plant: Plant, law: LawSettings = WHOLE_LAW) -> Policy:
    """Return the planner with a profile that knows the objective of each service only."""
    profiles = []
    for service in plant.scenario.services:
        text = _OBJECTIVE.format(objective_ms=service.slo_s * 1e3)
        profile = _build(parse_document(text, "simulation"))
        profiles.append(replace(profile, name=service.name))
    return Planned(plant, profiles, law=law)


def _build(document: Document) -> Profile:
    return build_profile(document, check(document, ProfileModel), TICK_NS, evicts=True)
