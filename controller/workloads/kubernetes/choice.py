# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PURE: which profile a latency-sensitive pod gets. Its owner chooses a name, never a number."""

from collections.abc import Callable, Collection
from typing import NamedTuple

from controller.workloads.kubernetes.pod import Pod

__all__ = ("PROFILE_LABEL", "Choice", "Choose", "by_label")

PROFILE_LABEL = "sweetpoint.dev/profile"


class Choice(NamedTuple):
    """The name of a profile that exists, and what was wrong with what the pod asked for."""

    profile: str
    problem: str | None = None


# ``None`` stands for a pod of which nothing but the cgroup is known.
Choose = Callable[[Pod | None], Choice]


def by_label(profiles: Collection[str], default: str) -> Choose:
    """Return the rule that believes the pod's label if there is such a profile."""

    def choose(pod: Pod | None) -> Choice:
        wanted = "" if pod is None else pod.labels.get(PROFILE_LABEL, "")
        if not wanted:
            return Choice(default)
        if wanted in profiles:
            return Choice(wanted)
        return Choice(default, f"{PROFILE_LABEL}={wanted[:64]!r}: no profile has that name")

    return choose
