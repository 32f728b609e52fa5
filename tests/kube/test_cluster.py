# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster of the tests behaves like a real one."""

import json

import pytest

from tests.kube.client import Refused
from tests.kube.cluster import Cluster
from tests.kube.kubelet import Kubelet
from tests.kube.kubepods import DRIVERS, Driver, Kubepods
from tests.support.waiting import eventually

pytestmark = pytest.mark.kube

EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction"}


def evict(cluster: Cluster, namespace: str, name: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    cluster.admin.create(path, {**EVICTION, "metadata": {"name": name}})


def test_a_service_account_has_the_permissions_of_its_role_only(
    cluster: Cluster, namespace: str
) -> None:
    client = cluster.client(namespace, "default")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with pytest.raises(Refused) as refused:
        client.get(pods)
    assert refused.value.status == 403
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    cluster.grant(namespace, "default", rules)
    assert client.get(pods)["items"] == []
    with pytest.raises(Refused) as refused:
        client.get("/api/v1/nodes")
    assert refused.value.status == 403


def test_a_bound_token_names_its_node(cluster: Cluster, namespace: str) -> None:
    pod = cluster.make_pod(namespace, "agent", node="some-node")
    client = cluster.client(namespace, "default", pod)
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    extra = client.create(path, review)["status"]["userInfo"]["extra"]
    assert extra["authentication.kubernetes.io/pod-name"] == ["agent"]
    assert extra["authentication.kubernetes.io/node-name"] == ["some-node"]


@pytest.mark.parametrize("qos", ["BestEffort", "Burstable", "Guaranteed"])
def test_the_server_sets_the_qos_class(cluster: Cluster, namespace: str, qos: str) -> None:
    pod = cluster.make_pod(namespace, "pod", node="some-node", qos=qos)
    assert pod["status"]["qosClass"] == qos


@pytest.mark.kernel
def test_a_budget_refuses_and_then_allows_an_eviction(
    cluster: Cluster, namespace: str, kubelet: Kubelet
) -> None:
    labels = {"app": "batch"}
    pod = cluster.make_pod(namespace, "batch", node=kubelet.node, labels=labels)
    running = kubelet.start(pod)
    cluster.make_budget(namespace, "budget", labels, allowed=0)
    with pytest.raises(Refused) as refused:
        evict(cluster, namespace, "batch")
    assert refused.value.status == 429
    assert (
        "deletionTimestamp"
        not in cluster.admin.get(f"/api/v1/namespaces/{namespace}/pods/batch")["metadata"]
    )
    cluster.allow(namespace, "budget", 1)
    evict(cluster, namespace, "batch")
    eventually("the end of the pod", lambda: kubelet.ended == [running.uid])
    assert not running.cgroup.exists()
    with pytest.raises(Refused) as refused:
        cluster.admin.get(f"/api/v1/namespaces/{namespace}/pods/batch")
    assert refused.value.status == 404


@pytest.mark.kernel
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_node_is_ready_and_its_pods_have_cgroups(
    cluster: Cluster, namespace: str, kubepods: Kubepods, driver: Driver
) -> None:
    there = Kubepods(kubepods.base, kubepods.layout, driver)
    with Kubelet(cluster, cluster.new_name("node"), there) as kubelet:
        node = json.loads(cluster.kubectl("get", "node", kubelet.node, "-o", "json"))
        assert "taints" not in node["spec"]
        assert [c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready"] == [
            "True"
        ]
        for qos in ("BestEffort", "Burstable", "Guaranteed"):
            name = qos.lower()
            pod = cluster.make_pod(namespace, name, node=kubelet.node, qos=qos)
            running = kubelet.start(pod)
            (status,) = running.pod["status"]["containerStatuses"]
            assert status["containerID"].removeprefix("containerd://") in running.container.name
            assert (running.container / "cgroup.procs").exists()


def test_the_server_has_the_same_data_after_a_restart(cluster: Cluster, namespace: str) -> None:
    cluster.make_pod(namespace, "pod", node="some-node")
    client = cluster.client(namespace, "default")
    cluster.plane.stop_server()
    try:
        with pytest.raises(ConnectionError):
            cluster.admin.get(f"/api/v1/namespaces/{namespace}/pods")
    finally:
        cluster.plane.start_server()
    (pod,) = cluster.admin.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    assert pod["metadata"]["name"] == "pod"
    with pytest.raises(
        Refused
    ) as refused:  # authenticated and not allowed: the token is still valid
        client.get(f"/api/v1/namespaces/{namespace}/pods")
    assert refused.value.status == 403
