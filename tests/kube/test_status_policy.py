# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The chart's policy lets the agent change only its own resources in a node's status."""

import pytest

from tests.kube.client import Client, Json, Refused
from tests.kube.cluster import Cluster
from tests.kube.installed import Installed
from tests.support.waiting import eventually

pytestmark = pytest.mark.kube

OURS = {"sweetpoint.dev/cpu": "1500", "sweetpoint.dev/memory": "1073741824"}


def refusal(client: Client, node: str, change: Json) -> str:
    """Return why this change of the status of *node* is refused; empty if it is not."""
    try:
        client.patch(f"/api/v1/nodes/{node}/status", change)
    except Refused as error:
        assert error.status == 403, error
        return str(error.answer["message"])
    return ""


def both(amounts: Json) -> Json:
    """Return the patch that publishes *amounts*."""
    return {"status": {"capacity": amounts, "allocatable": amounts}}


def test_only_the_own_resources_of_the_own_node(cluster: Cluster) -> None:
    installed = Installed(cluster, {"config": {"kubernetes": {"capacity": {"enabled": True}}}})
    node, other = cluster.new_name("node"), cluster.new_name("node")
    cluster.make_node(node)
    cluster.make_node(other)
    agent = installed.agent(node)
    # A policy takes effect a moment after its creation.
    eventually("the policy", lambda: "its own node" in refusal(agent, other, both(OURS)))
    stamp = {"metadata": {"annotations": {"sweetpoint.dev/reclaimed": "{}"}}}
    assert refusal(agent, node, {**both(OURS), **stamp}) == ""
    for amounts in (
        {"cpu": "64"},
        {"memory": None},
        {"example.org/gpu": "8"},
        {"kubernetes.io/batch-cpu": "1000"},
    ):
        assert "its own resources" in refusal(agent, node, both(amounts)), amounts
    unready = {"type": "Ready", "status": "False", "reason": "Mine"}
    for status in (
        {"conditions": [unready]},
        {"daemonEndpoints": {"kubeletEndpoint": {"Port": 6666}}},
        {"volumesInUse": ["kubernetes.io/x"]},
        {"volumesAttached": [{"name": "kubernetes.io/x", "devicePath": ""}]},
    ):
        assert "kubelet" in refusal(agent, node, {"status": status}), status
    for change in ({"metadata": {"labels": {"a": "b"}}}, {"spec": {"unschedulable": True}}):
        before = cluster.admin.get(f"/api/v1/nodes/{node}")
        refusal(agent, node, change)
        after = cluster.admin.get(f"/api/v1/nodes/{node}")
        assert before["metadata"].get("labels") == after["metadata"].get("labels")
        assert before["spec"] == after["spec"]
    # Resources that were published under other names before a change of the configuration.
    before = both({"kubernetes.io/batch-cpu": "1k", "example.org/gpu": "8"})
    cluster.admin.patch(f"/api/v1/nodes/{node}/status", before)
    assert "its own resources" in refusal(agent, node, both({"kubernetes.io/batch-cpu": "2k"}))
    assert "its own resources" in refusal(agent, node, both({"example.org/gpu": None}))
    assert refusal(agent, node, both({"kubernetes.io/batch-cpu": None})) == ""
    cluster.admin.patch(f"/api/v1/nodes/{node}/status", both({"example.org/gpu": None}))
    assert refusal(agent, node, both(dict.fromkeys(OURS))) == ""
    assert set(cluster.admin.get(f"/api/v1/nodes/{node}")["status"]["capacity"]) == {
        *("cpu", "memory", "pods")
    }


def test_an_agent_without_capacity_may_remove_earlier_resources(cluster: Cluster) -> None:
    off = {"enabled": False}
    installed = Installed(cluster, {"config": {"kubernetes": {"capacity": off}}})
    node, other = cluster.new_name("node"), cluster.new_name("node")
    cluster.make_node(node)
    cluster.make_node(other)
    agent = installed.agent(node)
    eventually("the policy", lambda: "its own node" in refusal(agent, other, both(OURS)))
    cluster.admin.patch(f"/api/v1/nodes/{node}/status", both(OURS))
    assert "its own resources" in refusal(agent, node, both({"sweetpoint.dev/cpu": "7"}))
    assert refusal(agent, node, both(dict.fromkeys(OURS))) == ""
