# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Where a rollout puts a policy in force: on all nodes, or on none.

The agent adds this to the labels of its Node, with a key that no label of the Node can have there.
So it is kept with them over a restart, and takes effect as a change of them does.
"""

from collections.abc import Mapping
from enum import StrEnum

__all__ = ("Reach", "reach_of", "with_kept_reaches", "with_reaches")

_PREFIX = "rollout.sweetpoint.dev/"


class Reach(StrEnum):
    """On which nodes a policy is in force in place of those that it selects."""

    EVERYWHERE = "everywhere"
    NOWHERE = "nowhere"


def reach_of(policy: str, labels: Mapping[str, str] | None) -> str | None:
    """Return the reach of *policy* by *labels* that have it; ``None``: that which it selects."""
    return (labels or {}).get(f"{_PREFIX}{policy}")


def with_reaches(labels: Mapping[str, str], reaches: Mapping[str, Reach]) -> Mapping[str, str]:
    """Return *labels* of a Node with *reaches* by policy; a label in place of one is left out."""
    own = {key: value for key, value in labels.items() if not key.startswith(_PREFIX)}
    return own | {f"{_PREFIX}{policy}": str(each) for policy, each in reaches.items()}


def with_kept_reaches(labels: Mapping[str, str], kept: Mapping[str, str]) -> Mapping[str, str]:
    """Return *labels*, which have no reaches, with those of *kept*, the labels of before."""
    return {**labels, **{key: each for key, each in kept.items() if key.startswith(_PREFIX)}}
