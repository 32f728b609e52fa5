# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What there is to tell of the Kubernetes side of the node; part of every tick's report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from controller.kube.profile_configmap import ProfilesState

__all__ = ("ClusterState", "DescriptorsState", "ReclaimState")


class ReclaimState(NamedTuple):
    """An extended resource of the node: how much is offered, in its own unit, and granted of it.

    ``stale``: nothing can be offered for want of data. ``foreign``: somebody else publishes it.
    """

    resource: str
    amount: int
    granted: int
    stale: bool
    foreign: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorsState:
    """What is known of Katalyst's ServiceProfileDescriptors.

    ``known`` are in namespaces that count. ``in_use`` says what each profile that was made of one
    got from it, by the profile's name, and ``problems`` what of it does not count; at most a
    hundred each. ``unreadable`` says why they cannot be read now.
    """

    known: int = 0
    in_use: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    unreadable: str = ""

    def status(self) -> dict[str, Any]:
        """Return it for /statusz: plain types."""
        return {
            "known": self.known,
            "in_use": dict(self.in_use),
            "problems": dict(self.problems),
            "unreadable": self.unreadable,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The pods of this node as far as they are known.

    ``synced``: the API server has been asked at least once; ``age_s`` is the time since its last
    word, ``None`` before any. ``pods`` are on its list, ``refused`` were on it and made no sense.
    ``classes`` counts workloads by (class, what gave it), ``unlisted`` are cgroups of pods that
    the list does not have. ``foreign_roots`` hold the pods of other nodes. Of texts that the
    owners of pods caused (``label_problems``, by pod) and of ``conflicts`` between pods and
    configured workloads at most a hundred each are kept. ``left_knobs`` are left to another agent
    of this node, with the reason. ``problem`` says why the list is not kept up to date now;
    ``requests`` counts those that failed, by ``unreachable`` or HTTP status; ``dropped_events``
    were not sent because there were too many.
    ``marked_until_s``: the node bears the mark of an eviction, until then since the epoch.
    ``reclaimable`` is what the node offers to best-effort pods.
    ``profiles``: what is known of the ConfigMap with profiles; ``None``: none is asked for.
    ``descriptors``: of the ServiceProfileDescriptors; ``None``: none count.
    """

    node: str
    synced: bool = False
    age_s: float | None = None
    pods: int = 0
    refused: int = 0
    unlisted: int = 0
    classes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    foreign_roots: tuple[str, ...] = ()
    label_problems: Mapping[str, str] = field(default_factory=dict)
    conflicts: tuple[str, ...] = ()
    left_knobs: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    requests: Mapping[str, int] = field(default_factory=dict)
    dropped_events: int = 0
    marked_until_s: float | None = None
    reclaimable: tuple[ReclaimState, ...] = ()
    profiles: ProfilesState | None = None
    descriptors: DescriptorsState | None = None

    def status(self) -> dict[str, Any]:
        """Return it for /statusz: plain types."""
        return {
            "node": self.node,
            "synced": self.synced,
            "age_s": self.age_s,
            "pods": self.pods,
            "refused": self.refused,
            "unlisted": self.unlisted,
            "classes": [
                {"class": qos, "given_by": rule, "workloads": count}
                for (qos, rule), count in sorted(self.classes.items())
            ],
            "cgroup_roots": self.roots,
            "foreign_cgroup_roots": self.foreign_roots,
            "label_problems": dict(self.label_problems),
            "conflicts": self.conflicts,
            "left_knobs": dict(self.left_knobs),
            "profiles": None if self.profiles is None else self.profiles.status(),
            "service_profiles": None if self.descriptors is None else self.descriptors.status(),
            "problem": self.problem,
            "failed_requests": dict(self.requests),
            "dropped_events": self.dropped_events,
            "marked_until_s": self.marked_until_s,
            "reclaimable": [each._asdict() for each in self.reclaimable],
        }
