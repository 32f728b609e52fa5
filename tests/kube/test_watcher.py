# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's list of pods from a real API server, over a proxy that can be interrupted."""

from collections.abc import Iterator
import contextlib
from pathlib import Path
import time

import pytest

from controller.kube.pod_watcher import PodWatcher
from tests.kube.cable import Cable
from tests.kube.client import Client, Refused
from tests.kube.cluster import Cluster
from tests.kube.counting_api import CountingApi
from tests.support.waiting import eventually

pytestmark = pytest.mark.kube

RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]


@pytest.fixture
def node(cluster: Cluster) -> str:
    return cluster.new_name("node")


@pytest.fixture
def client(cluster: Cluster, namespace: str) -> Client:
    return cluster.client(namespace, "default")


@pytest.fixture
def api(cluster: Cluster, client: Client, cable: Cable, tmp_path: Path) -> CountingApi:
    return CountingApi(cluster.kubeconfig(tmp_path / "kubeconfig", client, cable.url))


@contextlib.contextmanager
def watching(api: CountingApi, node: str) -> Iterator[PodWatcher]:
    watcher = PodWatcher(api, node)
    try:
        yield watcher
    finally:
        began = time.monotonic()
        watcher.close()
        assert time.monotonic() - began < 5
        assert watcher.failure is None


@pytest.fixture
def watcher(cluster: Cluster, namespace: str, api: CountingApi, node: str) -> Iterator[PodWatcher]:
    cluster.grant(namespace, "default", RULES)
    with watching(api, node) as watcher:
        eventually("the first list", lambda: watcher.pods.synced)
        yield watcher


def names(watcher: PodWatcher) -> set[str]:
    return {pod.name for pod in watcher.pods.pods.values()}


def test_changes_of_the_node_s_pods_are_read_with_one_list(
    cluster: Cluster, namespace: str, node: str, api: CountingApi, watcher: PodWatcher
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    cluster.make_pod(namespace, "elsewhere", node="elsewhere")
    cluster.make_pod(namespace, "one", node=node)
    cluster.make_pod(namespace, "two", node=node, qos="Guaranteed")
    eventually("both", lambda: names(watcher) == {"one", "two"})
    cluster.admin.patch(
        f"{pods}/one", {"metadata": {"labels": {"sweetpoint.dev/qos": "best-effort"}}}
    )
    found = lambda: {pod.name: pod for pod in watcher.pods.pods.values()}  # noqa: E731
    eventually("the label", lambda: "sweetpoint.dev/qos" in found()["one"].labels)
    assert found()["two"].qos_class == "Guaranteed"
    # Bound and never started: kubelet completes the deletion.
    cluster.admin.delete(f"{pods}/two")
    eventually("the begin of the deletion", lambda: found()["two"].terminating)
    cluster.admin.delete(f"{pods}/two?gracePeriodSeconds=0")
    eventually("the deletion", lambda: names(watcher) == {"one"})
    assert (api.lists, watcher.problem) == (1, "")


def test_an_interrupted_watch_is_resumed(
    cluster: Cluster,
    namespace: str,
    node: str,
    api: CountingApi,
    watcher: PodWatcher,
    cable: Cable,
) -> None:
    for number in range(3):
        cable.cut()
        cluster.make_pod(namespace, f"pod-{number}", node=node)
        eventually("the pod", lambda number=number: f"pod-{number}" in names(watcher))
    assert api.lists == 1
    assert watcher.pods.synced


def test_after_a_compaction_there_is_one_list_and_a_new_watch(
    cluster: Cluster,
    namespace: str,
    node: str,
    api: CountingApi,
    watcher: PodWatcher,
    cable: Cable,
) -> None:
    early = cluster.make_pod(namespace, "early", node=node)
    cluster.make_pod(namespace, "gone", node=node)
    eventually("the pods", lambda: names(watcher) == {"early", "gone"})
    # These changes do not reach the agent.
    cable.hold()
    pods = f"/api/v1/namespaces/{namespace}/pods"
    cluster.admin.delete(f"{pods}/gone?gracePeriodSeconds=0")
    cluster.make_pod(namespace, "between", node=node)
    cable.cut()
    cluster.plane.stop_server()
    cable.release()
    try:
        before = cable.connections
        eventually("a refusal", lambda: watcher.errors.get("unreachable"))
        cluster.plane.compact()
        time.sleep(1)
        assert names(watcher) == {"early", "gone"} and watcher.pods.synced
        assert watcher.age_s(time.monotonic_ns()) > 1
        assert 1 <= cable.connections - before < 20, "neither a busy loop nor a stop"
    finally:
        cluster.plane.start_server()
    assert is_past(cluster, early["metadata"]["resourceVersion"])
    eventually("the current pods", lambda: names(watcher) == {"early", "between"})
    assert (api.lists, watcher.problem) == (2, "")
    cluster.make_pod(namespace, "late", node=node)
    eventually("the late pod", lambda: names(watcher) == {"early", "between", "late"})
    assert api.lists == 2
    assert watcher.age_s(time.monotonic_ns()) < 3


def is_past(cluster: Cluster, version: str) -> bool:
    """Whether the server answers a watch from *version* with 410 Gone."""
    query = f"watch=1&timeoutSeconds=5&resourceVersion={version}"
    try:
        event = cluster.admin.get(f"/api/v1/pods?{query}")
    except Refused as refusal:
        return refusal.status == 410
    return bool(event["object"].get("code") == 410)


def test_a_missing_permission_is_reported_and_a_later_grant_is_used(
    cluster: Cluster, namespace: str, node: str, api: CountingApi
) -> None:
    with watching(api, node) as watcher:
        eventually("a refusal", lambda: watcher.errors.get("403"))
        assert "forbidden" in watcher.problem.lower()
        assert not watcher.pods.synced
        cluster.grant(namespace, "default", RULES)
        eventually("the list", lambda: watcher.pods.synced)
        assert watcher.problem == ""
