# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a rollout is about: the candidate, its canary nodes and the criterion.

The ConfigMap of the rollout has the specification, that of the profiles has the candidate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
import hashlib
import json
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from controller.config.fields import RATIO_OF_LIMIT, Strict, Text, check, duration, raw_default
from controller.config.policy_changes import settings_of
from controller.config.profile_set import parse_profiles
from controller.config.sections.kubernetes_profiles import PROFILE
from controller.config.sections.policies import POLICY, LabelKey, LabelValue, PolicySetModel
from controller.config.yaml_document import ConfigError, Document, parse_document, write_document
from controller.core.model import Mode
from controller.trial.comparison import setting

__all__ = (
    "SPEC_KEY",
    "Gain",
    "ProfileNames",
    "Proposal",
    "RolloutModel",
    "promoted_text",
    "read_proposal",
)

SPEC_KEY = "rollout.yaml"
_MAX_LABELS = 16
# Agents check profiles again, with their own control period and CPUs.
_TICK_NS, _CPUS = 200_000_000, 1024


class Gain(StrEnum):
    """What the median node must show: a service that gains, or none that loses."""

    BETTER = "better"
    NO_HARM = "no-harm"


class PolicyCandidateModel(Strict):
    """A policy of the agents' configuration that is tried."""

    name: Annotated[str, Field(pattern=POLICY)]
    """Name of the policy, which has rollout: true."""
    changes: PolicySetModel = Field(alias="set")
    """What the policy sets, as in the configuration; trials of something else do not count."""


class RolloutModel(Strict):
    """The specification of a rollout."""

    candidate: Annotated[str, Field(pattern=PROFILE)] | None = None
    """Profile that is tried; a policy gives it to the services of the canary nodes."""
    replaces: Annotated[str, Field(pattern=PROFILE)] | None = None
    """Profile whose content becomes that of the candidate when it is promoted."""
    policy: PolicyCandidateModel | None = None
    """Policy that is tried in place of a profile; the promotion puts it in force on all nodes."""
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


class ProfileNames(NamedTuple):
    """The profile that is tried, and the one that it ``replaces``."""

    candidate: str
    replaces: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A specification with its candidate. ``digest`` changes with the text of either.

    ``names`` are those of the profiles, or the name of the policy. ``candidate`` is the text of the
    profile, empty for a policy. ``sets`` is what the policy sets, such as ``law.find_harm=false``.
    """

    spec: RolloutModel
    names: ProfileNames | str
    candidate: str = ""
    sets: tuple[str, ...] = ()
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
    document = parse_document(text, SPEC_KEY)
    spec = check(document, RolloutModel)
    digest = partial(_digest, text)
    if spec.policy is not None:
        sets = _sets(spec, document)
        return spec, Proposal(spec=spec, names=spec.policy.name, sets=sets, digest=digest(""))
    if spec.candidate is None or spec.replaces is None:
        raise ConfigError([f"{SPEC_KEY}: needs candidate and replaces, or a policy"])
    names = ProfileNames(spec.candidate, spec.replaces)
    if names.candidate == names.replaces:
        raise ConfigError([f"{SPEC_KEY}: candidate and replaces are the same profile"])
    key = f"{names.candidate}.yaml"
    candidate = profiles.get(key)
    if candidate is None:
        return spec, None
    parse_profiles({key: candidate}, "profiles", tick_ns=_TICK_NS, cpus=_CPUS)
    digest_of = digest(candidate)
    return spec, Proposal(spec=spec, names=names, candidate=candidate, digest=digest_of)


def _digest(text: str, candidate: str) -> str:
    return hashlib.sha256(json.dumps([text, candidate]).encode()).hexdigest()


def _sets(spec: RolloutModel, document: Document) -> tuple[str, ...]:
    """Return what the policy of *spec* sets, with the values as *document* has them.

    :raises ConfigError: no trial can compare that.
    """
    data: Any = document.data
    found = settings_of(data["policy"]["set"])
    problem = ""
    if spec.candidate is not None or spec.replaces is not None:
        problem = "a policy has neither candidate nor replaces"
    elif not found or spec.policy is None:
        problem = "policy: set: must have at least one key"
    elif spec.policy.changes.replace_profiles:
        problem = "policy: set: a profile is the candidate of a rollout of its own"
    elif "mode" in found and (len(found) > 1 or spec.policy.changes.mode is not Mode.ENFORCE):
        problem = "policy: set: mode: a trial compares enforce alone, with pausing"
    if problem:
        raise ConfigError([f"{SPEC_KEY}: {problem}"])
    return tuple(sorted(setting(key, value) for key, value in found.items()))


def promoted_text(proposal: Proposal) -> str:
    """Return the profile of *proposal* under the name of the profile that it replaces."""
    data = parse_document(proposal.candidate, "candidate").data
    assert isinstance(data, dict)  # read_proposal has checked it
    return write_document({**data, "name": proposal.spec.replaces})
