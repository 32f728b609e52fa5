# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Permissions of the chart at a real server: exactly the needed verbs, and only the own node."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.kube.client import Client, Json, Refused
from tests.kube.cluster import Cluster
from tests.kube.installed import Installed
from tests.kube.katalyst import install
from tests.kube.permissions import EVERYBODY, allowed, granted
from tests.support.waiting import eventually

pytestmark = pytest.mark.kube

OVERLOADED = {"key": "sweetpoint.dev/overloaded", "effect": "PreferNoSchedule"}
FOREIGN = {"key": "example.org/mine", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Installed:
    install(cluster)
    # Capacity is off, but its permission is kept to remove what an earlier run published.
    off = {"enabled": False}
    section = {"eviction": {"enabled": True}, "service_profiles": "all", "capacity": off}
    return Installed(cluster, {"config": {"kubernetes": section}})


@pytest.fixture
def node(cluster: Cluster) -> str:
    name = cluster.new_name("node")
    cluster.make_node(name)
    return name


@pytest.fixture
def agent(installed: Installed, node: str) -> Client:
    return installed.agent(node)


def refusal(client: Client, method: str, path: str, body: Json) -> str:
    """Return why the server forbids a request, empty if it does not; other errors are raised."""
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    try:
        client.call(method, path, body, kind)
    except Refused as error:
        assert error.status == 403, error
        return str(error.answer["message"])
    return ""


def taint(client: Client, node: str, taints: list[Json]) -> str:
    return refusal(client, "PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": taints}})


def eviction_path(pod: Json) -> str:
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/eviction"


def eviction_of(pod: Json, options: Json) -> Json:
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod["metadata"]["name"]},
        "deleteOptions": options,
    }


def eviction(client: Client, pod: Json, options: Json) -> str:
    return refusal(client, "POST", eviction_path(pod), eviction_of(pod, options))


def test_the_agent_has_exactly_the_permissions_of_the_role(
    installed: Installed, agent: Client, namespace: str
) -> None:
    rules = installed.rules
    assert not any("*" in rule[key] for rule in rules for key in rule)
    assert not any("resourceNames" in rule for rule in rules)
    assert allowed(agent, namespace) == EVERYBODY | granted(rules)


def test_the_agent_may_read_only_the_configmap_with_profiles(
    cluster: Cluster, installed: Installed, agent: Client
) -> None:
    maps = f"/api/v1/namespaces/{installed.namespace}/configmaps"
    names = {each["metadata"]["name"] for each in cluster.admin.get(maps)["items"]}
    assert len(names) > 1 and f"{installed.name}-profiles" in names
    for name in names:
        its_own = name == f"{installed.name}-profiles"
        selector = f"?fieldSelector=metadata.name%3D{name}"
        for path, may in ((f"{maps}/{name}", False), (f"{maps}{selector}", its_own)):
            try:
                agent.get(path)
            except Refused as error:
                assert (error.status, may) == (403, False), path
            else:
                assert may, path
    with pytest.raises(Refused) as refused:
        agent.get(maps)
    assert refused.value.status == 403


def test_the_policy_allows_only_the_taint_of_the_own_node(
    cluster: Cluster, installed: Installed, node: str, agent: Client
) -> None:
    other = cluster.new_name("node")
    cluster.make_node(other)
    # A policy takes effect a moment after its creation.
    eventually("the policy", lambda: "its own node" in taint(agent, other, [OVERLOADED]))
    assert "its own node" in taint(agent, other, [])
    assert taint(agent, node, [OVERLOADED]) == ""
    assert "taint" in taint(agent, node, [OVERLOADED, FOREIGN])
    # NoExecute would delete every pod of the node.
    assert "NoExecute" in taint(agent, node, [{**OVERLOADED, "effect": "NoExecute"}])
    assert taint(agent, node, [{**OVERLOADED, "effect": "NoSchedule"}]) == ""
    assert taint(agent, node, []) == ""
    assert "its own node" in taint(installed.stranger(), node, [OVERLOADED])
    path = f"/api/v1/nodes/{node}"
    for change, word in (
        ({"metadata": {"annotations": {"example.org/mine": "1"}}}, "annotations"),
        ({"metadata": {"labels": {"example.org/mine": "1"}}}, "labels"),
        ({"spec": {"unschedulable": True}}, "labels"),
    ):
        assert word in refusal(agent, "PATCH", path, change)
    # Whether an agent is paused is decided by others.
    pause = {"metadata": {"annotations": {"sweetpoint.dev/pause": "1h"}}}
    assert "sweetpoint.dev/pause" in refusal(agent, "PATCH", path, pause)
    cluster.admin.patch(path, pause)
    lifted = {"metadata": {"annotations": {"sweetpoint.dev/pause": None}}}
    assert "sweetpoint.dev/pause" in refusal(agent, "PATCH", path, lifted)
    assert taint(agent, node, []) == ""
    own = {"metadata": {"annotations": {"sweetpoint.dev/overloaded": "1"}}}
    assert refusal(agent, "PATCH", path, own) == ""
    offer = {"status": {"capacity": {"sweetpoint.dev/cpu": "1"}}}
    assert "its own resources" in refusal(agent, "PATCH", f"{path}/status", offer)


def test_taints_do_not_wait_behind_lists_and_events(
    cluster: Cluster, installed: Installed, node: str, agent: Client
) -> None:
    counted = "apiserver_flowcontrol_dispatched_requests_total"
    schema = f'flow_schema="{installed.name}"'

    def dispatched() -> float:
        page = str(cluster.admin.get("/metrics")["message"])
        lines = [each for each in page.splitlines() if each.startswith(counted) and schema in each]
        return sum(float(each.rpartition(" ")[2]) for each in lines)

    def patched() -> bool:
        before = dispatched()
        taint(agent, node, [OVERLOADED])
        return dispatched() == before + 1

    eventually("the flow schema", patched)
    before = dispatched()
    agent.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node}")
    assert dispatched() == before


def test_the_policy_requires_the_uid_and_the_grace_period(
    cluster: Cluster, installed: Installed, node: str, agent: Client, namespace: str
) -> None:
    pod = cluster.make_pod(namespace, "batch", node=node)
    exact = {"preconditions": {"uid": pod["metadata"]["uid"]}}
    hasty = {**exact, "gracePeriodSeconds": 0, "dryRun": ["All"]}
    eventually("the policy", lambda: "grace period" in eviction(agent, pod, hasty))
    assert "uid" in eviction(agent, pod, {})
    # Both policies refuse; the server returns the message of one of them.
    refused = eviction(installed.stranger(), pod, exact)
    assert "token" in refused or "own node" in refused
    assert eviction(agent, pod, exact) == ""
    path = f"/api/v1/namespaces/{namespace}/pods/batch"
    assert "deletionTimestamp" in cluster.admin.get(path)["metadata"]


def test_the_policy_refuses_no_eviction_of_other_clients(
    cluster: Cluster, node: str, agent: Client, namespace: str
) -> None:
    gone = {"metadata": {"namespace": namespace, "name": "gone", "uid": "of-a-pod-that-ended"}}
    exact = {"preconditions": {"uid": "of-a-pod-that-ended"}}
    pod = cluster.make_pod(namespace, "batch", node=node)
    eventually("the policy", lambda: eviction(agent, pod, {"dryRun": ["All"]}))
    # Of a namespace without pods, the policy has no parameters.
    other = cluster.make_namespace(cluster.new_name("empty"))
    gone["metadata"]["namespace"] = other
    with pytest.raises(Refused) as refused:
        cluster.admin.create(eviction_path(gone), eviction_of(gone, exact))
    assert refused.value.status == 404, refused.value
    exact = {"preconditions": {"uid": pod["metadata"]["uid"]}}
    cluster.admin.create(eviction_path(pod), eviction_of(pod, exact))


def test_the_policy_allows_only_evictions_of_best_effort_pods_of_the_own_node(
    cluster: Cluster, node: str, agent: Client, namespace: str
) -> None:
    other = cluster.new_name("node")
    cluster.make_node(other)

    def evict(where: str, options: Json | None = None, /, **made: Any) -> Callable[[], str]:
        pod = cluster.make_pod(namespace, cluster.new_name("pod"), node=where, **made)
        exact = {"preconditions": {"uid": pod["metadata"]["uid"]}, "dryRun": ["All"]}
        return lambda: eviction(agent, pod, exact | (options or {}))

    def refused(words: str, where: str, options: Json | None = None, /, **made: Any) -> None:
        # The server's cache has a new pod a moment later.
        judged = evict(where, options, **made)
        eventually(f"{words} for {made}", lambda: words in judged())

    refused("its own node", other)
    refused("another uid", node, {"preconditions": {"uid": "of-its-namesake"}})
    for never in (
        {"spec": {"priorityClassName": "system-node-critical"}},
        {"annotations": {"kubernetes.io/config.mirror": "x"}},
        {"owner": {"kind": "DaemonSet", "name": "logs"}},
    ):
        refused("never evicted", node, **never)
    for dear in ({}, {"labels": {"sweetpoint.dev/qos": "latency-sensitive"}}):
        refused("best-effort pods only", node, qos="Burstable", **dear)
    for cheap in (
        {"qos": "BestEffort", "owner": {"kind": "ReplicaSet", "name": "batch"}},
        {"qos": "Burstable", "labels": {"sweetpoint.dev/qos": "best-effort"}},
        {"qos": "Guaranteed", "labels": {"koordinator.sh/qosClass": "BE"}},
        {
            "qos": "Burstable",
            "annotations": {"katalyst.kubewharf.io/qos_level": "reclaimed_cores"},
        },
    ):
        assert evict(node, **cheap)() == "", cheap
