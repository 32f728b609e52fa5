# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a rollout changes in the ConfigMap of the profiles."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from controller.config.rollout_reach import Reach
from controller.config.sections.policies import MAX_POLICIES
from controller.config.yaml_document import ConfigError
from controller.kube.node import annotation, mapping
from controller.kube.policy_reaches import REACHES_KEY, decode_reaches, encode_reaches
from controller.rollout.decision import Write
from controller.rollout.spec import Proposal, promoted_text

__all__ = ("REPLACED_KEY", "Change", "change", "check_reach", "kept")

# Key of the ConfigMap of the rollout: the text of the profile that the last promotion replaced;
# empty: there was none of this name.
REPLACED_KEY = "replaced.yaml"
_REACHES = {
    Write.PROMOTE: Reach.EVERYWHERE,
    Write.REMOVE: Reach.NOWHERE,
    Write.RESTORE: Reach.NOWHERE,
}


class Change(NamedTuple):
    """Values of keys of the data and of annotations; ``None`` removes a key."""

    data: Mapping[str, str | None]
    annotations: Mapping[str, str | None]


def change(
    write: Write, proposal: Proposal, rollout: dict[str, Any], profiles: dict[str, Any]
) -> Change | None:
    """Return the change of the ConfigMap *profiles*; ``None``: it is as it should be.

    :raises ConfigError: its annotation is damaged.
    """
    names = proposal.names
    if isinstance(names, str):
        return _reach(write, names, annotation(profiles, REACHES_KEY))
    data = mapping(profiles, "data")
    key = f"{names.replaces}.yaml"
    if write is Write.PROMOTE:
        return Change({key: promoted_text(proposal)}, {})
    removed: dict[str, str | None] = {f"{names.candidate}.yaml": None}
    # The profile of before comes back where the promoted one still stands.
    before = mapping(rollout, "data").get(REPLACED_KEY) if write is Write.RESTORE else None
    if isinstance(before, str) and data.get(key) == promoted_text(proposal):
        removed[key] = before or None
    return Change(removed, {})


def _reach(write: Write, policy: str, text: str | None) -> Change | None:
    before = decode_reaches(text)
    after = {name: each for name, each in before.items() if name != policy}
    if write in _REACHES:
        after[policy] = _REACHES[write]
    if after == before:
        return None
    return Change({}, {REACHES_KEY: encode_reaches(after) if after else None})


def check_reach(proposal: Proposal, profiles: dict[str, Any]) -> None:
    """Check that the policy of *proposal* can be tried; for profiles there is nothing to check.

    :raises ConfigError: it is in force on all nodes, or no further policy can have a reach.
    """
    policy = proposal.names
    if not isinstance(policy, str):
        return
    reaches = decode_reaches(annotation(profiles, REACHES_KEY))
    if reaches.get(policy) is Reach.EVERYWHERE:
        raise ConfigError([f"policy {policy} is in force on all nodes by an earlier rollout"])
    if policy not in reaches and len(reaches) >= MAX_POLICIES:
        raise ConfigError(
            [
                f"annotation {REACHES_KEY} has {len(reaches)} policies, the most: remove those "
                "that the configuration no longer has"
            ]
        )


def kept(proposal: Proposal, profiles: dict[str, Any]) -> Mapping[str, str]:
    """Return what the ConfigMap of the rollout keeps of *profiles*, for a later roll-back.

    Nothing where the candidate was promoted before: what it replaced then is kept already.
    """
    names = proposal.names
    if isinstance(names, str):
        return {}
    before = str(mapping(profiles, "data").get(f"{names.replaces}.yaml", ""))
    return {} if before == promoted_text(proposal) else {REPLACED_KEY: before}
