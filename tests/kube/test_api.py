# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The API client with a real API server with RBAC."""

from collections.abc import Callable
from pathlib import Path

import pytest

from controller.kube.client.api import Api, PatchKind
from controller.kube.client.errors import ApiError
from tests.kube.client import Json
from tests.kube.cluster import Cluster
from tests.support.kube.limits import PATIENT

pytestmark = pytest.mark.kube

Rules = list[Json]
PODS: Rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]


@pytest.fixture
def connect(cluster: Cluster, namespace: str, tmp_path: Path) -> Callable[[Rules], Api]:
    def make(rules: Rules) -> Api:
        cluster.grant(namespace, "default", rules)
        client = cluster.client(namespace, "default")
        return Api(cluster.kubeconfig(tmp_path / "kubeconfig", client), PATIENT)

    return make


Connect = Callable[[Rules], Api]


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
    with pytest.raises(ApiError) as error:
        api.create(f"{path}/eviction", eviction)
    assert (error.value.status, error.value.causes) == (429, ("DisruptionBudget",))
    assert pod["metadata"]["uid"] == cluster.admin.get(path)["metadata"]["uid"]


def test_a_watch_ends_after_its_timeout(connect: Connect) -> None:
    api = connect(PODS)
    found: list[Json] = []
    version = api.items("/api/v1/pods", {"resourceVersion": "0"}, found.append)
    query = {"resourceVersion": version, "timeoutSeconds": "1", "allowWatchBookmarks": "true"}
    with api.watch("/api/v1/pods", query) as events:
        assert all(event["type"] != "ERROR" for event in events)
