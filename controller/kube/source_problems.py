# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the sources in the cluster: the list of pods, profiles, permissions."""

from collections.abc import Iterator

from controller.host.sources import Source, SourceProblem, SourceState
from controller.kube.state import ClusterState, Reload

__all__ = ("source_problems",)

# Without an event a watch is resumed after 100 s (``Limits.silence_s``), so this is missed thrice.
_STALE_S = 300.0
_MAX_DENIED = 3


def source_problems(state: ClusterState) -> Iterator[SourceProblem]:
    """Yield the problems of the sources that *state* is about."""
    yield from _pods(state)
    yield from _profiles(state)
    if state.denied:
        shown = [f"{task} ({text})" for task, text in sorted(state.denied.items())[:_MAX_DENIED]]
        more = len(state.denied) - len(shown)
        text = (
            f"the API server forbids {', '.join(shown)}{f' and {more} more' if more else ''}: give "
            "the agent's account the rules of the chart's ClusterRole ('helm upgrade')"
        )
        yield SourceProblem(Source.PERMISSIONS, SourceState.DEGRADED, text)


def _pods(state: ClusterState) -> Iterator[SourceProblem]:
    # A list that once had a pod of this host is that of this node.
    before = SourceState.DEGRADED if state.matched else SourceState.UNSEEN
    if state.node_missing:
        text = (
            f"there is no Node {state.node}: set kubernetes.node to a name that 'kubectl get "
            "nodes' shows; the chart sets it by itself"
        )
        yield SourceProblem(Source.PODS, before, text)
    elif not state.synced:
        text = (
            f"the API server has not sent the list of pods yet ({state.problem or 'no answer'}): "
            "no pod is limited; docs/KUBERNETES_CONCEPTS.md says what to check for each cause"
        )
        yield SourceProblem(Source.PODS, SourceState.UNSEEN, text)
    elif not state.matched and (state.unlisted or state.running):
        text = (
            f"no pod in the list of node {state.node} has a cgroup on this host: no pod is "
            "limited; check kubernetes.node, and cgroup_roots if it is set"
        )
        yield SourceProblem(Source.PODS, SourceState.UNSEEN, text)
    if state.synced and state.age_s is not None and state.age_s > _STALE_S:
        text = (
            f"the list of pods is out of date ({state.problem or 'no answer'}): known pods keep "
            "their class, no pod is evicted; it is read again when the API server answers"
        )
        yield SourceProblem(Source.PODS, SourceState.DEGRADED, text)


def _profiles(state: ClusterState) -> Iterator[SourceProblem]:
    profiles = state.profiles
    if profiles is not None and profiles.result in (Reload.FAILED, Reload.MISSING):
        text = f"{profiles.note}; correct ConfigMap {profiles.config_map}"
        yield SourceProblem(Source.PROFILES, SourceState.DEGRADED, text)
    if profiles is not None and profiles.unreadable:
        text = f"ConfigMap {profiles.config_map} cannot be read: {profiles.unreadable}"
        yield SourceProblem(Source.PROFILES, SourceState.DEGRADED, text)
    if state.descriptors is not None and state.descriptors.unreadable:
        text = f"ServiceProfileDescriptors cannot be read: {state.descriptors.unreadable}"
        yield SourceProblem(Source.PROFILES, SourceState.DEGRADED, text)
