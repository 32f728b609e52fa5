# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The API client and the pod watcher with a real API server with RBAC."""

from collections.abc import Callable, Iterator
from pathlib import Path
import time

import pytest

from controller.kube.client.api import PatchKind
from controller.kube.client.errors import ApiError
from controller.kube.pod_watcher import PodWatcher
from tests.kube.cable import Cable
from tests.kube.client import Json
from tests.kube.cluster import Cluster
from tests.kube.counting_api import CountingApi
from tests.support.waiting import eventually

pytestmark = pytest.mark.kube

Rules = list[Json]
PODS: Rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]


@pytest.fixture
def cable(cluster: Cluster) -> Iterator[Cable]:
    with Cable(cluster.plane.port) as cable:
        yield cable


@pytest.fixture
def connect(
    cluster: Cluster, namespace: str, tmp_path: Path, cable: Cable
) -> Callable[[Rules], CountingApi]:
    def make(rules: Rules) -> CountingApi:
        cluster.grant(namespace, "default", rules)
        client = cluster.client(namespace, "default")
        return CountingApi(cluster.kubeconfig(tmp_path / "kubeconfig", client, cable.url))

    return make


Connect = Callable[[Rules], CountingApi]


def test_every_verb(connect: Connect, namespace: str) -> None:
    verbs = ["create", "get", "patch", "delete"]
    api = connect([{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}])
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    body = {"metadata": {"name": "x"}, "data": {"a": "1"}}
    assert api.create(maps, body)["data"] == {"a": "1"}
    with pytest.raises(ApiError) as error:
        api.create(maps, body)
    assert (error.value.status, error.value.reason) == (409, "AlreadyExists")
    api.patch(f"{maps}/x", {"data": {"b": "2"}}, kind=PatchKind.MERGE)
    api.patch(f"{maps}/x", {"data": {"c": "3"}}, kind=PatchKind.STRATEGIC)
    remove = [{"op": "remove", "path": "/data/a"}]
    api.patch(f"{maps}/x", remove, kind=PatchKind.JSON)
    assert api.get(f"{maps}/x")["data"] == {"b": "2", "c": "3"}
    api.delete(f"{maps}/x")
    with pytest.raises(ApiError) as error:
        api.get(f"{maps}/x")
    assert (error.value.status, error.value.reason) == (404, "NotFound")
    with pytest.raises(ApiError) as error:
        api.get(maps)
    assert (error.value.status, error.value.reason) == (403, "Forbidden")


def test_a_refused_eviction_names_the_budget(
    cluster: Cluster, connect: Connect, namespace: str
) -> None:
    api = connect([{"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}])
    pod = cluster.make_pod(namespace, "held", node="elsewhere", labels={"app": "x"})
    # Without the condition Ready a pod can be evicted whatever its budget.
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    path = f"/api/v1/namespaces/{namespace}/pods/held"
    cluster.admin.patch(f"{path}/status", {"status": ready})
    cluster.make_budget(namespace, "budget", {"app": "x"}, allowed=0)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "held"}}

    def refused() -> ApiError | None:
        with pytest.raises(ApiError) as error:
            api.create(f"{path}/eviction", eviction)
        return error.value if error.value.causes else None

    error = refused()
    assert error is not None
    assert (error.status, error.causes) == (429, ("DisruptionBudget",))
    assert pod["metadata"]["uid"] == cluster.admin.get(path)["metadata"]["uid"]


def test_a_watch_ends_after_its_timeout(connect: Connect) -> None:
    api = connect(PODS)
    found: list[Json] = []
    version = api.items("/api/v1/pods", {"resourceVersion": "0"}, found.append)
    query = {"resourceVersion": version, "timeoutSeconds": "1", "allowWatchBookmarks": "true"}
    with api.watch("/api/v1/pods", query) as events:
        assert all(event["type"] != "ERROR" for event in events)


def test_the_watcher_resumes_interrupted_watches(
    cluster: Cluster, connect: Connect, namespace: str, cable: Cable
) -> None:
    node = cluster.new_name("node")
    cluster.make_pod(namespace, "first", node=node)
    cluster.make_pod(namespace, "elsewhere", node="elsewhere")
    api = connect(PODS)
    watcher = PodWatcher(api, node)

    def names() -> list[str]:
        return sorted(pod.name for pod in watcher.pods.pods.values())

    try:
        eventually("the first pod", lambda: names() == ["first"])
        for number in range(3):
            cable.cut()
            cluster.make_pod(namespace, f"pod-{number}", node=node)
            eventually("the next pod", lambda number=number: f"pod-{number}" in names())
        path = f"/api/v1/namespaces/{namespace}/pods/first"
        cluster.admin.patch(path, {"metadata": {"labels": {"sweetpoint.dev/qos": "best-effort"}}})
        eventually(
            "the label",
            lambda: any("sweetpoint.dev/qos" in pod.labels for pod in watcher.pods.pods.values()),
        )
        cluster.admin.call("DELETE", path + "?gracePeriodSeconds=0")
        eventually("the deletion", lambda: names() == ["pod-0", "pod-1", "pod-2"])
        assert api.lists == 1
        age_s = watcher.age_s(time.monotonic_ns())
        assert age_s is not None
        assert age_s < 20
        assert watcher.failure is None
    finally:
        watcher.close()
