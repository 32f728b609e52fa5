# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Metric families of the Kubernetes side of the node."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.kube.state import ClusterState, DescriptorsState, ProfilesState, Reload

__all__ = ("kube_families",)

_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)


def kube_families(state: ClusterState | None) -> Iterator[Metric]:
    """Yield the families of *state*; none on a host without Kubernetes."""
    if state is None:
        return
    for name, text, value in (
        ("pods", "Pods of this node in the API server's list.", state.pods),
        ("synced", "1 once the API server's list was read.", float(state.synced)),
        ("refused_pods", "Pods in the API server's list that are invalid.", state.refused),
        (
            "unlisted_pods",
            "Pods with a cgroup on this host that are not in the API server's list.",
            state.unlisted,
        ),
        (
            "conflicts",
            "Pods left out because a configured workload has their cgroup.",
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
        text = "Time since the API server last confirmed the list of pods."
        yield GaugeMetricFamily("sweetpoint_kube_cache_age_seconds", text, state.age_s)
    classes = GaugeMetricFamily(
        "sweetpoint_kube_workloads",
        "Pods that are workloads, by class and by the rule that assigned it.",
        labels=["class", "given_by"],
    )
    yield _filled(classes, state.classes.items())
    if state.profiles is not None:
        yield from _profiles(state.profiles)
    if state.descriptors is not None:
        yield from _descriptors(state.descriptors)
    problems = GaugeMetricFamily(
        "sweetpoint_kube_label_problem",
        "1 for a pod with labels or annotations that are not accepted.",
        # Not "pod": scrapers use that label for the scraped pod.
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
        "1 for a knob that is ceded to another agent of this node.",
        labels=["knob", "reason"],
    )
    yield _filled(left, ((pair, 1) for pair in state.left_knobs.items()))


def _filled(family: _Family, rows: Iterable[tuple[Sequence[str], float]]) -> _Family:
    """Add *rows* of (label values, number), sorted, to *family* and return it."""
    for labels, number in sorted(rows):
        family.add_metric(labels, number)
    return family


def _profiles(state: ProfilesState) -> Iterator[Metric]:
    reloads = CounterMetricFamily(
        "sweetpoint_kube_profiles_reload",
        "Changes of the ConfigMap with profiles, by result.",
        labels=["result"],
    )
    yield _filled(reloads, (((result,), count) for result, count in state.reloads.items()))
    yield GaugeMetricFamily(
        "sweetpoint_kube_profiles",
        "Profiles of the ConfigMap that are in force.",
        len(state.profiles),
    )
    yield GaugeMetricFamily(
        "sweetpoint_kube_profiles_problem",
        "1 while the current contents of the ConfigMap are not in force.",
        float(state.result in (Reload.FAILED, Reload.MISSING) or bool(state.unreadable)),
    )
    if state.applied_at_s is not None:
        yield GaugeMetricFamily(
            "sweetpoint_kube_profiles_last_applied_timestamp_seconds",
            "Time at which profiles of the ConfigMap were last applied.",
            state.applied_at_s,
        )


def _descriptors(state: DescriptorsState) -> Iterator[Metric]:
    for name, text, value in (
        ("known", "ServiceProfileDescriptors in accepted namespaces.", state.known),
        (
            "used",
            "Profiles of this node that are derived from a ServiceProfileDescriptor.",
            len(state.in_use),
        ),
        (
            "problems",
            "ServiceProfileDescriptors of this node's pods of which a part is ignored.",
            len(state.problems),
        ),
        (
            "unreadable",
            "1 while ServiceProfileDescriptors cannot be read.",
            float(bool(state.unreadable)),
        ),
    ):
        yield GaugeMetricFamily(f"sweetpoint_kube_service_profiles_{name}", text, value)


def _reclaimable(state: ClusterState) -> Iterator[Metric]:
    for field, text in (
        ("amount", "Amount offered to best-effort pods, in the resource's own unit."),
        ("granted", "Amount requested by the pods of this node."),
        ("stale", "1 if nothing is offered because there is no fresh data."),
        ("foreign", "1 if another program publishes the resource on this node: left alone."),
    ):
        family = GaugeMetricFamily(f"sweetpoint_reclaimable_{field}", text, labels=["resource"])
        rows = (((each.resource,), float(getattr(each, field))) for each in state.reclaimable)
        yield _filled(family, rows)
    expected = GaugeMetricFamily(
        "sweetpoint_reclaimable_expected_use",
        "Use by all other work that is expected soon, in the resource's own unit.",
        labels=["resource"],
    )
    known = ((each.resource, each.expected) for each in state.reclaimable)
    yield _filled(expected, (((name,), use) for name, use in known if use is not None))
    for field, text in (
        ("forecast_hours", "Hours for which the use had been forecast."),
        ("broken_hours", "Hours in which the use exceeded forecast and reserve."),
    ):
        judged = CounterMetricFamily(f"sweetpoint_reclaimable_{field}", text, labels=["resource"])
        rows = (((each.resource,), float(getattr(each, field))) for each in state.reclaimable)
        yield _filled(judged, rows)
