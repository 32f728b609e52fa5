# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Policies: which of them are in force on a node at a time, and the document with what they set.

Pure: labels and time are arguments. The document that ``apply`` returns is loaded like one without
policies. A message about a value that a policy set names the place in the policy.

Policies apply in the order of the file, and a later one wins key by key. The order of the file is
what a reader sees; a rule by which the narrower selector wins would need a measure of narrowness.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from controller.config.calendar_window import Window
from controller.config.candidate import Candidate
from controller.config.label_selector import LabelSelector
from controller.config.rollout_reach import Reach, reach_of
from controller.config.sections.policies import PolicyModel, build_selector, build_windows
from controller.config.yaml_document import Document, Loc
from controller.core.model import Mode

__all__ = (
    "Change",
    "PoliciesInForce",
    "Policy",
    "PolicyInForce",
    "Situation",
    "apply",
    "build_policies",
    "find_in_force",
    "resolve",
)

# An end is looked for over so many adjacent windows; a policy may have windows without a gap.
_MOST_ADJACENT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """An entry of ``policies``. ``nodes`` is ``None``: all of them. Without ``windows``: always.

    ``place`` is its index in the file. ``sets`` is what it sets, in the form of the file.
    ``until_s`` is when the candidate of a trial ends; ``None``: it is another policy. ``rollout``:
    a rollout may put it in force on all nodes, or on none.
    """

    name: str
    place: int
    nodes: LabelSelector | None
    windows: tuple[Window, ...]
    sets: Mapping[str, Any]
    until_s: float | None = None
    rollout: bool = False

    @property
    def sets_mode(self) -> bool:
        """Whether it sets the mode."""
        return "mode" in self.sets

    def end_s(self, now_s: float) -> float | None:
        """Return when its present window ends; ``None``: it is in none."""
        found = end = self._end_of_one(now_s)
        for _ in range(_MOST_ADJACENT):
            if end is None:
                break
            found, end = end, self._end_of_one(end)
        return found

    def _end_of_one(self, now_s: float) -> float | None:
        ends = (each.end_s(now_s) for each in self.windows)
        return max((each for each in ends if each is not None), default=None)

    def next_begin_s(self, now_s: float) -> float | None:
        """Return when its next window begins; ``None``: not within 400 days."""
        begins = (each.next_begin_s(now_s) for each in self.windows)
        return min((each for each in begins if each is not None), default=None)


class Situation(NamedTuple):
    """On what policies depend: the labels of the node, and the time in seconds since 1970.

    ``labels`` is ``None`` if they are not known. ``paused`` has the names of policies that are not
    in force whatever they say.
    """

    labels: Mapping[str, str] | None
    now_s: float
    paused: frozenset[str] = frozenset()


class PolicyInForce(NamedTuple):
    """A policy that is in force, why, and what it ``sets``, in the form of the file.

    ``promoted``: a rollout has put it in force on all nodes.
    """

    name: str
    place: int
    because: str
    sets: Mapping[str, Any] = MappingProxyType({})
    promoted: bool = False


class Change(NamedTuple):
    """A ``key`` such as ``law.find_harm``, its ``value``, and the one ``without`` the policy.

    Values have the form of the file.
    """

    key: str
    value: object
    without: object


@dataclass(frozen=True, slots=True, kw_only=True)
class PoliciesInForce:
    """The policies in force, in the order in which they apply.

    ``known`` has the names of all policies of the file. ``next_change_s`` is when others are in
    force, in seconds since 1970; ``None``: that is not known. ``undecided``: the names of policies
    that are not in force because the labels of the node are not known. ``observes_until_known``:
    one of those sets the mode, so that the mode is observe. ``candidate`` is that of a trial, which
    is among the ``entries``. ``changes`` has what each policy in force changes, by its name.
    """

    known: tuple[str, ...] = ()
    entries: tuple[PolicyInForce, ...] = ()
    next_change_s: float | None = None
    undecided: tuple[str, ...] = ()
    observes_until_known: bool = False
    candidate: Candidate | None = None
    changes: Mapping[str, tuple[Change, ...]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the policies in force."""
        return tuple(each.name for each in self.entries)

    def is_same_as(self, other: "PoliciesInForce") -> bool:
        """Return whether both lead to the same configuration."""
        return (self.names, self.undecided) == (other.names, other.undecided)


def build_policies(
    document: Document, models: Iterable[PolicyModel], problems: list[str], *, has_pods: bool
) -> tuple[Policy, ...]:
    """Return the checked section; what is wrong in it is added to *problems*.

    *has_pods*: the file has a section ``kubernetes``.
    """
    policies: list[Policy] = []
    for place, model in enumerate(models):
        at: Loc = ("policies", place)
        nodes: LabelSelector | None = None
        windows: tuple[Window, ...] = ()
        try:
            nodes = build_selector(model.nodes)
        except ValueError as error:
            problems.append(document.problem((*at, "nodes", "matchExpressions"), str(error)))
        try:
            windows = build_windows(model)
        except ValueError as error:
            problems.append(document.problem((*at, "times"), str(error)))
        changes = _changes(document, place)
        if not changes:
            problems.append(document.problem((*at, "set"), "must have at least one key"))
        useless, hint = (
            ("eviction", "set kubernetes.eviction in a cluster")
            if has_pods
            else ("kubernetes", "the file has no section kubernetes")
        )
        if useless in changes:
            problems.append(document.problem((*at, "set", useless), f"has no effect: {hint}"))
        if model.rollout and nodes is None:
            text = "a policy of a rollout needs nodes: the canary nodes"
            problems.append(document.problem((*at, "rollout"), text))
        if model.name in (each.name for each in policies):
            text = f"{model.name!r} is already the name of a policy"
            problems.append(document.problem((*at, "name"), text))
        policies.append(
            Policy(
                name=model.name,
                place=place,
                nodes=nodes,
                windows=windows,
                sets=changes,
                rollout=model.rollout,
            )
        )
    return tuple(policies)


def find_in_force(policies: Sequence[Policy], situation: Situation) -> PoliciesInForce:
    """Return which of *policies* are in force in *situation*."""
    labels, now_s, paused = situation
    entries: list[PolicyInForce] = []
    changes: list[float | None] = []
    undecided: list[Policy] = []
    for policy in policies:
        reach = reach_of(policy.name, labels) if policy.rollout else None
        if policy.name in paused or reach == Reach.NOWHERE:
            continue
        nodes = None if reach == Reach.EVERYWHERE else policy.nodes
        if nodes is not None and labels is None:
            undecided.append(policy)
            continue
        if nodes is not None and not nodes.matches(labels or {}):
            continue
        end_s = policy.end_s(now_s)
        if policy.windows:
            changes.append(policy.next_begin_s(now_s) if end_s is None else end_s)
        if not policy.windows or end_s is not None:
            because = _because(replace(policy, nodes=nodes), end_s, reach)
            promoted = reach == Reach.EVERYWHERE
            entries.append(PolicyInForce(policy.name, policy.place, because, policy.sets, promoted))
    return PoliciesInForce(
        known=tuple(each.name for each in policies),
        entries=tuple(entries),
        next_change_s=min((each for each in changes if each is not None), default=None),
        undecided=tuple(each.name for each in undecided),
        observes_until_known=any(each.sets_mode for each in undecided),
    )


def _because(policy: Policy, end_s: float | None, reach: str | None) -> str:
    if policy.until_s is not None:
        return f"trial, until {datetime.fromtimestamp(policy.until_s, UTC):%Y-%m-%d %H:%M} UTC"
    parts = [] if policy.nodes is None else [f"node labels: {policy.nodes}"]
    parts += [f"rollout: {reach}"] if reach == Reach.EVERYWHERE else []
    if end_s is not None:
        end = datetime.fromtimestamp(end_s, policy.windows[0].zone)
        parts.append(f"until {end:%Y-%m-%d %H:%M} {end.tzname()}")
    return "; ".join(parts) or "always"


def resolve(
    document: Document, policies: Sequence[Policy], situation: Situation
) -> tuple[Document, PoliciesInForce]:
    """Return the *document* that holds in *situation*, and the *policies* that are in force.

    As long as the labels of the node are not known and a policy that needs them sets the mode, the
    mode is observe: such a policy may be what keeps this node from being changed.
    """
    found = find_in_force(policies, situation)
    return apply(document, found), found


def apply(document: Document, found: PoliciesInForce) -> Document:
    """Return *document*, whose policies are valid, with what those in force set."""
    data: dict[str, object] = dict(document.data) if isinstance(document.data, dict) else {}
    moved: dict[Loc, Loc] = {}
    for entry in found.entries:
        changes = _changes(document, entry.place)
        _merge(data, moved, changes, (), ("policies", entry.place, "set"))
    if found.observes_until_known:
        data["mode"] = str(Mode.OBSERVE)
    return replace(document, data=data, moved=moved)


def _changes(document: Document, place: int) -> Mapping[str, Any]:
    found: Any = document.data
    changes = found["policies"][place]["set"]
    return changes if isinstance(changes, dict) else {}


def _merge(
    into: dict[str, object],
    moved: dict[Loc, Loc],
    changes: Mapping[str, Any],
    at: Loc,
    source: Loc,
) -> None:
    """Set *changes* in *into*, the mapping at *at*, whose sections are copied first."""
    for key, value in changes.items():
        loc, origin = (*at, key), (*source, key)
        if value is None:
            continue
        if isinstance(value, dict):
            section = into.get(key)
            into[key] = inner = dict(section) if isinstance(section, dict) else {}
            _merge(inner, moved, value, loc, origin)
        else:
            into[key] = value
            moved[loc] = origin
