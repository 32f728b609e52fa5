# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a rollout is about: the candidate, its canary nodes and the criterion.

The ConfigMap of the rollout has the specification, that of the profiles has the candidate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
import hashlib
import json
from typing import Annotated, Any

from pydantic import Field

from controller.config.fields import RATIO_OF_LIMIT, Strict, Text, check, duration, raw_default
from controller.config.profile_set import parse_profiles
from controller.config.sections.kubernetes_profiles import PROFILE
from controller.config.sections.policies import LabelKey, LabelValue
from controller.config.yaml_document import ConfigError, parse_document, write_document

__all__ = (
    "REPLACED_KEY",
    "SPEC_KEY",
    "Gain",
    "Proposal",
    "RolloutModel",
    "promoted_text",
    "read_proposal",
    "removal",
)

SPEC_KEY = "rollout.yaml"
# The text of the profile that the last promotion replaced; empty: there was none of this name.
REPLACED_KEY = "replaced.yaml"
_MAX_LABELS = 16
# Agents check profiles again, with their own control period and CPUs.
_TICK_NS, _CPUS = 200_000_000, 1024


class Gain(StrEnum):
    """What the median node must show: a service that gains, or none that loses."""

    BETTER = "better"
    NO_HARM = "no-harm"


class RolloutModel(Strict):
    """The specification of a rollout."""

    candidate: Annotated[str, Field(pattern=PROFILE)]
    """Profile that is tried; a policy gives it to the services of the canary nodes."""
    replaces: Annotated[str, Field(pattern=PROFILE)]
    """Profile whose content becomes that of the candidate when it is promoted."""
    nodes: Annotated[dict[LabelKey, LabelValue], Field(min_length=1, max_length=_MAX_LABELS)]
    """Labels of the canary nodes, all with these values."""
    least_nodes: Annotated[int, Field(ge=3, le=200)] = 3
    """Fewest canary nodes with a verdict; with three of them one may lie."""
    least_pairs: Annotated[int, Field(ge=3, le=64)] = 10
    """Fewest pairs of blocks of a node with a verdict."""
    gain: Annotated[Gain, Text] = Gain.BETTER
    """What the median node must show: better, or no-harm."""
    least_work: Annotated[float, RATIO_OF_LIMIT] = raw_default("70%")
    """Best-effort work that must stay of that of the other blocks; less of it counts as worse."""
    soak: Annotated[int, duration("1m", "720h")] = raw_default("24h")
    """Time for which the verdict must hold before the promotion."""
    within: Annotated[int, duration("1m", "2160h")] = raw_default("336h")
    """Longest time without a verdict; after it the candidate is rolled back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A specification with its candidate. ``digest`` changes with the text of either."""

    spec: RolloutModel
    candidate: str
    digest: str


def read_proposal(
    rollout: Mapping[str, Any], profiles: Mapping[str, Any]
) -> tuple[RolloutModel, Proposal | None]:
    """Return the specification, and the proposal: ``None`` without a candidate.

    Both arguments are the data of ConfigMaps.

    :raises ConfigError: the specification or the candidate is invalid.
    """
    text = rollout.get(SPEC_KEY)
    if not isinstance(text, str):
        raise ConfigError([f"the ConfigMap of the rollout has no {SPEC_KEY}"])
    spec = check(parse_document(text, SPEC_KEY), RolloutModel)
    if spec.candidate == spec.replaces:
        raise ConfigError([f"{SPEC_KEY}: candidate and replaces are the same profile"])
    key = f"{spec.candidate}.yaml"
    candidate = profiles.get(key)
    if candidate is None:
        return spec, None
    parse_profiles({key: candidate}, "profiles", tick_ns=_TICK_NS, cpus=_CPUS)
    digest = hashlib.sha256(json.dumps([text, candidate]).encode()).hexdigest()
    return spec, Proposal(spec=spec, candidate=candidate, digest=digest)


def promoted_text(proposal: Proposal) -> str:
    """Return the candidate under the name of the profile that it replaces."""
    data = parse_document(proposal.candidate, "candidate").data
    assert isinstance(data, dict)  # read_proposal has checked it
    return write_document({**data, "name": proposal.spec.replaces})


def removal(
    proposal: Proposal, rollout: Mapping[str, Any], profiles: Mapping[str, Any]
) -> dict[str, str | None]:
    """Return the change of the profiles that removes the candidate, and undoes its promotion.

    The profile of before comes back where the promoted one still stands. ``None``: remove a key.
    Both further arguments are the data of ConfigMaps.
    """
    change: dict[str, str | None] = {f"{proposal.spec.candidate}.yaml": None}
    key, before = f"{proposal.spec.replaces}.yaml", rollout.get(REPLACED_KEY)
    if isinstance(before, str) and profiles.get(key) == promoted_text(proposal):
        change[key] = before or None
    return change
