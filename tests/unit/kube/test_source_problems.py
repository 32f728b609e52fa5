# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the list of pods, profiles and permissions, from the state of the cluster."""

from dataclasses import replace

import pytest

from controller.host.sources import Source, SourceState
from controller.kube.source_problems import source_problems
from controller.kube.state import ClusterState, DescriptorsState, ProfilesState, Reload

WELL = ClusterState(node="n1", synced=True, matched=True, age_s=60.0, pods=3)
UNSEEN, DEGRADED = SourceState.UNSEEN, SourceState.DEGRADED


def found(state: ClusterState) -> list[tuple[Source, SourceState]]:
    return [(each.source, each.state) for each in source_problems(state)]


def text(state: ClusterState) -> str:
    (problem,) = source_problems(state)
    return problem.message


@pytest.mark.parametrize(
    "state",
    [
        WELL,
        replace(WELL, unlisted=2),
        replace(WELL, profiles=ProfilesState(config_map="a/b")),
        replace(WELL, profiles=ProfilesState(config_map="a/b", result=Reload.APPLIED)),
        ClusterState(node="n1", synced=True, age_s=1.0),  # a node without pods
    ],
)
def test_a_node_that_is_well(state: ClusterState) -> None:
    assert not found(state)


@pytest.mark.parametrize(
    ("state", "expected", "says"),
    [
        (ClusterState(node="n1"), UNSEEN, "not sent the list of pods yet (no answer)"),
        (ClusterState(node="n1", problem="403 Forbidden: no"), UNSEEN, "yet (403 Forbidden: no)"),
        (replace(WELL, matched=False, unlisted=7), UNSEEN, "no pod in the list of node n1"),
        (
            replace(WELL, matched=False, running=1),
            UNSEEN,
            "check kubernetes.node, and cgroup_roots",
        ),
        (replace(WELL, matched=False, node_missing=True), UNSEEN, "there is no Node n1"),
        (replace(WELL, node_missing=True), DEGRADED, "there is no Node n1"),
        (replace(WELL, age_s=301.0), DEGRADED, "out of date (no answer)"),
        (replace(WELL, age_s=301.0, problem="429 x"), DEGRADED, "out of date (429 x)"),
    ],
)
def test_pods(state: ClusterState, expected: SourceState, says: str) -> None:
    assert found(state) == [(Source.PODS, expected)]
    assert says in text(state)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (
            replace(
                WELL,
                profiles=ProfilesState(
                    config_map="a/b", result=Reload.FAILED, problems=("redis: no such key",)
                ),
            ),
            "redis: no such key; the profiles stay as they were; correct ConfigMap a/b",
        ),
        (
            replace(WELL, profiles=ProfilesState(config_map="a/b", unreadable="500 x")),
            "ConfigMap a/b cannot be read: 500 x",
        ),
        (
            replace(WELL, descriptors=DescriptorsState(unreadable="404 y")),
            "ServiceProfileDescriptors cannot be read: 404 y",
        ),
    ],
)
def test_profiles(state: ClusterState, says: str) -> None:
    assert found(state) == [(Source.PROFILES, DEGRADED)]
    assert text(state) == says


def test_permissions_are_named_a_few_at_a_time() -> None:
    state = replace(WELL, denied={f"job {number}": "403 x" for number in range(5)})
    assert found(state) == [(Source.PERMISSIONS, DEGRADED)]
    assert "forbids job 0 (403 x), job 1 (403 x), job 2 (403 x) and 2 more: " in text(state)
    assert "ClusterRole" in text(state)
