# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes side of the node in Prometheus' words."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.kube.profile_configmap import ProfilesState, Reload
from controller.kube.state import ClusterState, DescriptorsState

__all__ = ("kube_families",)

_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)


def kube_families(state: ClusterState | None) -> Iterator[Metric]:
    """Yield the families that tell of *state*; none on a host without Kubernetes."""
    if state is None:
        return
    for name, text, value in (
        ("pods", "Pods of this node on the API server's list.", state.pods),
        ("synced", "1 once the API server's list was read.", float(state.synced)),
        ("refused_pods", "Pods on that list that made no sense.", state.refused),
        ("unlisted_pods", "Pods with a cgroup here that are not on that list.", state.unlisted),
        (
            "conflicts",
            "Pods that are left out because a configured workload has their cgroup.",
            len(state.conflicts),
        ),
        (
            "foreign_cgroup_roots",
            "Cgroups with pods of other nodes, which are left alone.",
            len(state.foreign_roots),
        ),
    ):
        yield GaugeMetricFamily(f"sweetpoint_kube_{name}", text, value)
    if state.age_s is not None:
        text = "Time since the API server's last word."
        yield GaugeMetricFamily("sweetpoint_kube_cache_age_seconds", text, state.age_s)
    classes = GaugeMetricFamily(
        "sweetpoint_kube_workloads",
        "Pods that are workloads here, by class and by what gave it to them.",
        labels=["class", "given_by"],
    )
    yield _filled(classes, state.classes.items())
    if state.profiles is not None:
        yield from _profiles(state.profiles)
    if state.descriptors is not None:
        yield from _descriptors(state.descriptors)
    problems = GaugeMetricFamily(
        "sweetpoint_kube_label_problem",
        "1 for a pod whose labels or annotations are not believed.",
        # Not "pod": scrapers name the scraped pod so.
        labels=["workload", "problem"],
    )
    yield _filled(problems, ((pair, 1) for pair in state.label_problems.items()))
    failed = CounterMetricFamily(
        "sweetpoint_kube_failed_requests",
        "Requests to the API server that failed, by HTTP status or unreachable.",
        labels=["result"],
    )
    yield _filled(failed, (((result,), count) for result, count in state.requests.items()))
    yield CounterMetricFamily(
        "sweetpoint_kube_dropped_events",
        "Events that were not sent because there were too many.",
        value=state.dropped_events,
    )
    yield from _reclaimable(state)
    left = GaugeMetricFamily(
        "sweetpoint_kube_left_knob",
        "1 for a knob that is left to another agent of this node.",
        labels=["knob", "reason"],
    )
    yield _filled(left, ((pair, 1) for pair in state.left_knobs.items()))


def _filled(family: _Family, rows: Iterable[tuple[Sequence[str], float]]) -> _Family:
    """Return *family* with *rows* of values of its labels and a number, in their order."""
    for labels, number in sorted(rows):
        family.add_metric(labels, number)
    return family


def _profiles(state: ProfilesState) -> Iterator[Metric]:
    reloads = CounterMetricFamily(
        "sweetpoint_kube_profiles_reload",
        "Changes of the ConfigMap with profiles, by what came of them.",
        labels=["result"],
    )
    yield _filled(reloads, (((result,), count) for result, count in state.reloads.items()))
    yield GaugeMetricFamily(
        "sweetpoint_kube_profiles", "Profiles of the ConfigMap in force.", len(state.profiles)
    )
    yield GaugeMetricFamily(
        "sweetpoint_kube_profiles_problem",
        "1 while what the ConfigMap says now is not in force.",
        float(state.result in (Reload.FAILED, Reload.MISSING) or bool(state.unreadable)),
    )
    if state.applied_at_s is not None:
        yield GaugeMetricFamily(
            "sweetpoint_kube_profiles_last_applied_timestamp_seconds",
            "When profiles of the ConfigMap were applied last.",
            state.applied_at_s,
        )


def _descriptors(state: DescriptorsState) -> Iterator[Metric]:
    for name, text, value in (
        ("known", "ServiceProfileDescriptors in namespaces that count.", state.known),
        ("used", "Profiles of this node made with one of them.", len(state.in_use)),
        ("problems", "Those for this node of which not all counts.", len(state.problems)),
        ("unreadable", "1 while they cannot be read.", float(bool(state.unreadable))),
    ):
        yield GaugeMetricFamily(f"sweetpoint_kube_service_profiles_{name}", text, value)


def _reclaimable(state: ClusterState) -> Iterator[Metric]:
    for field, text in (
        ("amount", "What this node offers to best-effort pods, in the resource's own unit."),
        ("granted", "What the pods of this node asked for of it."),
        ("stale", "1 if nothing is offered for want of fresh data."),
        ("foreign", "1 if somebody else publishes it on this node: left alone."),
    ):
        family = GaugeMetricFamily(f"sweetpoint_reclaimable_{field}", text, labels=["resource"])
        rows = (((each.resource,), float(getattr(each, field))) for each in state.reclaimable)
        yield _filled(family, rows)
