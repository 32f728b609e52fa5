# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The policies by name, with their settings."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from controller.config.fields import check
from controller.config.models import ProfileModel
from controller.config.profile import build_profile
from controller.config.yaml_document import Document, parse_document, read_document
from controller.core.settings import Profile
from controller.host.package_data import profiles_dir
from controller.simulation.plant import Plant
from controller.simulation.policies.fixed import KUBELET_WEIGHT, Fixed
from controller.simulation.policies.planned import TICK_NS, Planned
from controller.simulation.policies.policy import Factory, Policy

__all__ = ("OURS", "Entry", "policies")

OURS = "sweetpoint"

_CPI = """
name: cpi
indicators:
  runq_delay_p99: {sweet_point: 4ms, min_samples: 0}
  runq_p99: {sweet_point: 4ms}
  cpi: {sweet_point: 1.3}
"""
_OBJECTIVE = """
name: objective
indicators:
  service: {{sweet_point: {sweet_point_ms:.3f}ms}}
channels: [cache]
"""
# The sweet point of a profile that knows the objective of its service and nothing else. On the cpu
# channel a service's own figure needs inflicted waits as evidence, on the cache channel traffic.
_OF_OBJECTIVE = 0.8


@dataclass(frozen=True, slots=True)
class Entry:
    """A policy: a sentence with its settings, and how it is made for a plant."""

    title: str
    factory: Factory


def policies(profile: Path | None = None) -> Mapping[str, Entry]:
    """Return all policies by name; *profile* is a file that replaces the shipped default.

    :raises ConfigError: the file cannot be read or is not a valid profile.
    """
    own = _build(read_document(profile or profiles_dir() / "default.yaml"))
    cpi = _build(parse_document(_CPI, "simulation"))
    return {
        "none": Entry("equal CPU weights, no limit", Fixed),
        "shares": Entry(
            "weight 2 for jobs, as kubelet sets it", partial(Fixed, weight=KUBELET_WEIGHT)
        ),
        "sched-idle": Entry("cpu.idle of jobs, no limit", partial(Fixed, idle=True)),
        OURS: Entry(f"the planner with {profile or 'the shipped default profile'}", _planned(own)),
        f"{OURS}-cpi": Entry(
            "the planner with a sweet point of 1.3 for CPI, quota only",
            _planned(cpi, resctrl=False),
        ),
        f"{OURS}-cpi-resctrl": Entry("the same with cache ways and MBA", _planned(cpi)),
        f"{OURS}-objective": Entry(
            "the planner with 0.8 of the objective as sweet point of the service's p99, "
            "cache channel",
            _for_objective,
        ),
    }


def _planned(profile: Profile, resctrl: bool = True) -> Factory:
    def make(plant: Plant) -> Policy:
        return Planned(plant, [profile] * len(plant.scenario.services), resctrl)

    return make


def _for_objective(plant: Plant) -> Policy:
    profiles = []
    for service in plant.scenario.services:
        text = _OBJECTIVE.format(sweet_point_ms=_OF_OBJECTIVE * service.slo_s * 1e3)
        profile = _build(parse_document(text, "simulation"))
        profiles.append(replace(profile, name=service.name))
    return Planned(plant, profiles)


def _build(document: Document) -> Profile:
    return build_profile(document, check(document, ProfileModel), TICK_NS, evicts=True)
