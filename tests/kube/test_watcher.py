# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's list of pods against a real API server, over a cable that can be pulled."""

from collections.abc import Iterator
import contextlib
from pathlib import Path
import time

import pytest

from controller.kube.client.api import Api
from controller.kube.pod_watcher import PodWatcher
from tests.kernel.agent import eventually
from tests.kube.cable import Cable
from tests.kube.client import Client, Refused
from tests.kube.cluster import Cluster

pytestmark = pytest.mark.kube

RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]


@pytest.fixture
def node(cluster: Cluster) -> str:
    return cluster.new_name("node")


@contextlib.contextmanager
def watching(
    cluster: Cluster, client: Client, cable: Cable, node: str, home: Path
) -> Iterator[PodWatcher]:
    watcher = PodWatcher(Api(cluster.kubeconfig(home / "kubeconfig", client, cable.url)), node)
    try:
        yield watcher
    finally:
        began = time.monotonic()
        watcher.close()
        assert time.monotonic() - began < 5
        assert watcher.failure is None


@pytest.fixture
def watcher(
    cluster: Cluster, namespace: str, cable: Cable, node: str, tmp_path: Path
) -> Iterator[PodWatcher]:
    cluster.grant(namespace, "default", RULES)
    client = cluster.client(namespace, "default")
    with watching(cluster, client, cable, node, tmp_path) as watcher:
        eventually("the first list", 10, lambda: watcher.pods.synced)
        yield watcher


def names(watcher: PodWatcher) -> set[str]:
    return {pod.name for pod in watcher.pods.pods.values()}


def test_it_follows_this_nodes_pods_with_one_list(
    cluster: Cluster, namespace: str, node: str, watcher: PodWatcher
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    cluster.make_pod(namespace, "elsewhere", node="elsewhere")
    cluster.make_pod(namespace, "one", node=node)
    cluster.make_pod(namespace, "two", node=node, qos="Guaranteed")
    eventually("both", 10, lambda: names(watcher) == {"one", "two"})
    cluster.admin.patch(
        f"{pods}/one", {"metadata": {"labels": {"sweetpoint.dev/qos": "best-effort"}}}
    )
    found = lambda: {pod.name: pod for pod in watcher.pods.pods.values()}  # noqa: E731
    eventually("the label", 10, lambda: "sweetpoint.dev/qos" in found()["one"].labels)
    assert found()["two"].qos_class == "Guaranteed"
    # Bound and never started: it stops when its kubelet says so.
    cluster.admin.delete(f"{pods}/two")
    eventually("its end to be near", 10, lambda: found()["two"].terminating)
    cluster.admin.delete(f"{pods}/two?gracePeriodSeconds=0")
    eventually("its end", 10, lambda: names(watcher) == {"one"})
    assert (watcher.lists, watcher.problem) == (1, "")


def test_a_cut_watch_goes_on_where_it_was(
    cluster: Cluster, namespace: str, node: str, watcher: PodWatcher, cable: Cable
) -> None:
    for number in range(3):
        cable.cut()
        cluster.make_pod(namespace, f"pod-{number}", node=node)
        eventually("the pod", 20, lambda number=number: f"pod-{number}" in names(watcher))
    assert watcher.lists == 1
    assert watcher.pods.synced


def test_a_server_that_comes_back_without_its_past_is_listed_once_and_followed_again(
    cluster: Cluster, namespace: str, node: str, watcher: PodWatcher, cable: Cable
) -> None:
    early = cluster.make_pod(namespace, "early", node=node)
    cluster.make_pod(namespace, "gone", node=node)
    eventually("the pods", 10, lambda: names(watcher) == {"early", "gone"})
    # Of this, nothing comes through.
    cable.hold()
    pods = f"/api/v1/namespaces/{namespace}/pods"
    cluster.admin.delete(f"{pods}/gone?gracePeriodSeconds=0")
    cluster.make_pod(namespace, "between", node=node)
    cable.cut()
    cluster.plane.stop_server()
    cable.release()
    try:
        before = cable.connections
        eventually("a refusal", 20, lambda: watcher.errors.get("unreachable"))
        cluster.plane.compact()
        time.sleep(1)
        assert names(watcher) == {"early", "gone"} and watcher.pods.synced
        assert watcher.age_s(time.monotonic_ns()) > 1
        assert 1 <= cable.connections - before < 20, "a hot loop, or none"
    finally:
        cluster.plane.start_server()
    assert is_past(cluster, early["metadata"]["resourceVersion"])
    eventually("the present", 60, lambda: names(watcher) == {"early", "between"})
    assert (watcher.lists, watcher.problem) == (2, "")
    cluster.make_pod(namespace, "late", node=node)
    eventually("the late pod", 10, lambda: names(watcher) == {"early", "between", "late"})
    assert watcher.lists == 2
    assert watcher.age_s(time.monotonic_ns()) < 3


def is_past(cluster: Cluster, version: str) -> bool:
    """Whether the server answers a watch from *version* with 410 Gone."""
    query = f"watch=1&timeoutSeconds=5&resourceVersion={version}"
    try:
        event = cluster.admin.get(f"/api/v1/pods?{query}")
    except Refused as refusal:
        return refusal.status == 410
    return bool(event["object"].get("code") == 410)


def test_without_the_right_it_says_so_and_goes_on_when_it_has_it(
    cluster: Cluster, namespace: str, node: str, cable: Cable, tmp_path: Path
) -> None:
    client = cluster.client(namespace, "default")
    with watching(cluster, client, cable, node, tmp_path) as watcher:
        eventually("a refusal", 10, lambda: watcher.errors.get("403"))
        assert "forbidden" in watcher.problem.lower()
        assert not watcher.pods.synced
        cluster.grant(namespace, "default", RULES)
        eventually("the list", 60, lambda: watcher.pods.synced)
        assert watcher.problem == ""
