# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""State of the Kubernetes side of the node; part of every tick's report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from controller.config.rollout_reach import Reach
from controller.core.settings import Profile

__all__ = ("ClusterState", "DescriptorsState", "ProfilesState", "ReclaimState", "Reload")


_MAX_SHOWN = 3


class Reload(StrEnum):
    """Result of a change: in force, refused as a whole, or the ConfigMap does not exist."""

    APPLIED = "applied"
    FAILED = "failed"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilesState:
    """State of the ConfigMap and its profiles.

    ``profiles`` are those in force, applied at ``applied_at_s`` in seconds since the epoch
    (``None``: never). ``result`` and ``problems`` are those of the last change, of the object with
    the id ``uid``; ``result`` is ``None`` until the ConfigMap was read. ``unreadable`` is the
    reason why it cannot be read now, empty if it can. ``reloads`` counts changes by result.
    ``digest`` is that of the texts of the profiles in force, empty without any. ``policies`` has
    where a rollout has put policies in force, by their names; ``None``: that was never read.
    """

    config_map: str
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    applied_at_s: float | None = None
    result: Reload | None = None
    problems: tuple[str, ...] = ()
    uid: str = ""
    unreadable: str = ""
    digest: str = ""
    policies: Mapping[str, Reach] | None = None
    reloads: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(Reload, 0))

    @property
    def note(self) -> str:
        """Description of the last change for people."""
        if self.result is Reload.APPLIED:
            names = ", ".join(sorted(self.profiles)) or "none"
            reaches = [
                f"; policy {name} {each}" for name, each in sorted((self.policies or {}).items())
            ]
            return f"profiles in force: {names}{''.join(reaches)}"
        shown = self.problems[:_MAX_SHOWN]
        more = len(self.problems) - len(shown)
        hidden = (f"and {more} more problems",) if more else ()
        return "; ".join((*shown, *hidden, "the profiles stay as they were"))

    def status(self) -> dict[str, Any]:
        """Return the state for /statusz as plain types."""
        return {
            "config_map": self.config_map,
            "profiles": sorted(self.profiles),
            "applied_at_s": self.applied_at_s,
            "result": self.result,
            "problems": self.problems,
            "unreadable": self.unreadable,
            "digest": self.digest,
            "policies": dict(self.policies or {}),
            "reloads": dict(self.reloads),
        }


class ReclaimState(NamedTuple):
    """An extended resource of the node: the offered and the granted amount, in its own unit.

    ``stale``: no offer can be computed because data is missing. ``foreign``: another program
    publishes the resource. ``expected`` is the use by all other work that is expected soon,
    ``None``: not known yet. ``forecast_hours`` were judged so far; in the ``broken_hours`` among
    them the use exceeded forecast and reserve.
    """

    resource: str
    amount: int
    granted: int
    stale: bool
    foreign: bool
    expected: int | None = None
    forecast_hours: int = 0
    broken_hours: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorsState:
    """State of Katalyst's ServiceProfileDescriptors.

    ``known`` is the number of descriptors in accepted namespaces. ``in_use`` maps the name of each
    derived profile to the numbers that it got from its descriptor, ``problems`` maps a descriptor
    to the parts of it that are ignored; at most 100 entries each. ``unreadable`` is the reason why
    they cannot be read now, empty if they can.
    """

    known: int = 0
    in_use: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    unreadable: str = ""

    def status(self) -> dict[str, Any]:
        """Return the state for /statusz as plain types."""
        return {
            "known": self.known,
            "in_use": dict(self.in_use),
            "problems": dict(self.problems),
            "unreadable": self.unreadable,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """State of the Kubernetes side of the node.

    ``synced``: the list of pods was read at least once. ``matched``: a pod of the list had a cgroup
    on this host. ``node_missing``: there is no Node object of the name ``node``. ``age_s``: seconds
    since the API server last confirmed it, ``None`` before the first time. ``pods``: the number of
    listed pods; ``running``: of those that have not ended, until one ``matched``; ``refused``: of
    listed objects that are invalid; ``unlisted``: of pod cgroups that are not on the list;
    ``completed``: of best-effort pods that succeeded since the agent's begin.
    ``classes`` counts workloads by (class, rule that assigned it). ``roots`` are the cgroups that
    hold the node's pods, ``foreign_roots`` those with pods of other nodes. ``label_problems`` maps
    pods to texts about their labels, ``conflicts`` are texts about pods that have the cgroup of a
    configured workload; at most 100 of each are kept. ``left_knobs`` maps knobs that are ceded to
    another agent of this node to the reason. ``problem`` is the reason why the list is not up to
    date now, empty if it is. ``denied`` maps what the API server forbids this agent to its message.
    ``requests`` counts failed requests by ``unreachable`` or HTTP status; ``dropped_events`` Events
    that were not sent because there were too many. ``marked_until_s``: the end of the overload
    taint in seconds since the epoch, ``None``: there is none. ``reclaimable``: the capacity offered
    to best-effort pods. ``profiles``: the state of the ConfigMap with profiles; ``descriptors``:
    that of the ServiceProfileDescriptors; ``None``: not configured.
    """

    node: str
    synced: bool = False
    matched: bool = False
    node_missing: bool = False
    age_s: float | None = None
    pods: int = 0
    running: int = 0
    refused: int = 0
    unlisted: int = 0
    completed: int = 0
    classes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    foreign_roots: tuple[str, ...] = ()
    label_problems: Mapping[str, str] = field(default_factory=dict)
    conflicts: tuple[str, ...] = ()
    left_knobs: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    denied: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)
    dropped_events: int = 0
    marked_until_s: float | None = None
    reclaimable: tuple[ReclaimState, ...] = ()
    profiles: ProfilesState | None = None
    descriptors: DescriptorsState | None = None

    def status(self) -> dict[str, Any]:
        """Return the state for /statusz as plain types."""
        return {
            "node": self.node,
            "synced": self.synced,
            "matched": self.matched,
            "node_missing": self.node_missing,
            "age_s": self.age_s,
            "pods": self.pods,
            "refused": self.refused,
            "unlisted": self.unlisted,
            "completed": self.completed,
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
            "denied": dict(self.denied),
            "failed_requests": dict(self.requests),
            "dropped_events": self.dropped_events,
            "marked_until_s": self.marked_until_s,
            "reclaimable": [each._asdict() for each in self.reclaimable],
        }
