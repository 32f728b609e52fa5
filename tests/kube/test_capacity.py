# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Extended resources of a node at a real API server, with minimal permissions."""

import json
from pathlib import Path
from typing import Any

import pytest

from controller.kube.client.api import Api
from controller.kube.client.errors import ApiError
from controller.kube.extended_resources import STAMP, NodeResources, remove_resources
from tests.kube.cluster import Cluster
from tests.support.kube.limits import PATIENT

pytestmark = pytest.mark.kube

CPU, MEMORY = "sweetpoint.dev/cpu", "sweetpoint.dev/memory"
BATCH = "kubernetes.io/batch-cpu"
RULES = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
]


class Site:
    """A node, and a client with the permissions of the agent."""

    def __init__(self, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
        self.admin = cluster.admin
        self.node = cluster.new_name("node")
        self.before = cluster.make_node(self.node)["status"]
        cluster.grant(namespace, "default", RULES)
        client = cluster.client(namespace, "default")
        self.api = Api(cluster.kubeconfig(tmp_path / "kubeconfig", client), PATIENT)
        self.now_s = 1_700_000_000.0

    def run(self) -> NodeResources:
        """Return the publisher of a new run of the agent."""
        return NodeResources(self.api, self.node, lambda: self.now_s)

    def get(self) -> dict[str, Any]:
        return self.admin.get(f"/api/v1/nodes/{self.node}")

    def found(self) -> dict[str, str]:
        """The extended resources; capacity and allocatable are the same."""
        status = self.get()["status"]
        plain = self.before["capacity"].keys()
        capacity, allocatable = (
            {name: amount for name, amount in status[kind].items() if name not in plain}
            for kind in ("capacity", "allocatable")
        )
        assert capacity == allocatable
        return capacity

    def stamp(self) -> dict[str, Any] | None:
        text = self.get()["metadata"].get("annotations", {}).get(STAMP)
        return None if text is None else dict(json.loads(text))

    def write(self, **amounts: str | None) -> None:
        """Write as another program would; kubelet copies capacity to allocatable."""
        named = {CPU if name == "cpu" else BATCH: amount for name, amount in amounts.items()}
        path = f"/api/v1/nodes/{self.node}/status"
        self.admin.patch(path, {"status": {"capacity": named, "allocatable": named}})


@pytest.fixture
def site(cluster: Cluster, namespace: str, tmp_path: Path) -> Site:
    return Site(cluster, namespace, tmp_path)


def test_amounts_are_published_with_a_time_stamp_and_removed(site: Site) -> None:
    run = site.run()
    # The server writes 2000 and 3 GB in its canonical form, which must not count as foreign.
    run.publish({CPU: 2000, MEMORY: 3_000_000_000}, 180.0)
    assert site.found() == {CPU: "2k", MEMORY: "3G"}
    assert site.stamp() == {
        "time": "2023-11-14T22:13:20+00:00",
        "validSeconds": 180,
        "resources": {CPU: "2k", MEMORY: "3G"},
    }
    for cpu, memory in ((1999, 2**31), (0, 0), (10**6, 1536)):
        site.now_s += 60
        run.publish({CPU: cpu, MEMORY: memory}, 180.0)
        assert run.foreign == frozenset()
    assert site.found() == {CPU: "1M", MEMORY: "1536"}
    assert remove_resources(site.api, site.node)
    assert site.found() == {}
    assert site.stamp() is None
    assert site.get()["status"]["capacity"] == site.before["capacity"]
    assert not remove_resources(site.api, site.node)


def test_the_offer_of_a_killed_run_is_changed_and_removed_by_the_next(site: Site) -> None:
    site.run().publish({CPU: 1500, MEMORY: 4096}, 180.0)
    again = site.run()
    again.publish({CPU: 700, MEMORY: 0}, 180.0)
    assert again.foreign == frozenset()
    assert site.found() == {CPU: "700", MEMORY: "0"}
    other_names = site.run()
    other_names.publish({BATCH: 300}, 180.0)
    assert site.found() == {BATCH: "300"}


def test_a_foreign_resource_is_left_alone(site: Site) -> None:
    site.write(batch="5000")
    run = site.run()
    run.publish({BATCH: 100, MEMORY: 4096}, 180.0)
    assert run.foreign == {BATCH}
    assert site.found() == {BATCH: "5k", MEMORY: "4096"}
    remove_resources(site.api, site.node)
    assert site.found() == {BATCH: "5k"}
    site.write(batch=None)
    run.publish({BATCH: 100, MEMORY: 4096}, 180.0)
    assert run.foreign == frozenset()
    assert site.found() == {BATCH: "100", MEMORY: "4096"}


def test_an_overwritten_resource_is_foreign_unless_kubelet_set_it_to_zero(site: Site) -> None:
    run = site.run()
    run.publish({CPU: 1000}, 180.0)
    site.write(cpu="0")
    run.publish({CPU: 1100}, 180.0)
    assert (run.foreign, site.found()) == (frozenset(), {CPU: "1100"})
    site.write(cpu="77")
    run.publish({CPU: 1200}, 180.0)
    assert (set(run.foreign), site.found()) == ({CPU}, {CPU: "77"})
    remove_resources(site.api, site.node)
    assert site.found() == {CPU: "77"}


def test_a_forged_annotation_does_not_remove_other_resources(site: Site) -> None:
    capacity = site.before["capacity"]
    claims = {"cpu": capacity["cpu"], "memory": capacity["memory"], "pods": capacity["pods"]}
    for text in (json.dumps({"resources": claims}), "[" * 4000, "x", '{"resources": 7}', "null"):
        path = f"/api/v1/nodes/{site.node}"
        site.admin.patch(path, {"metadata": {"annotations": {STAMP: text}}})
        site.run().publish({CPU: 5}, 180.0)
        remove_resources(site.api, site.node)
        assert site.get()["status"]["capacity"] == capacity
        assert site.stamp() is None


def test_without_the_permission_nothing_changes(
    cluster: Cluster, site: Site, tmp_path: Path
) -> None:
    other = cluster.make_namespace(cluster.new_name("other"))
    cluster.grant(other, "default", RULES[:1])
    api = Api(cluster.kubeconfig(tmp_path / "other", cluster.client(other, "default")), PATIENT)
    with pytest.raises(ApiError, match="403"):
        NodeResources(api, site.node).publish({CPU: 5}, 180.0)
    assert site.found() == {}


def test_a_node_that_does_not_exist_needs_no_removal(site: Site) -> None:
    NodeResources(site.api, "no-such-node").publish({CPU: 5}, 180.0)
    assert not remove_resources(site.api, "no-such-node")


def test_the_requests_of_pods_are_read_in_the_server_s_format(
    cluster: Cluster, site: Site, namespace: str
) -> None:
    from controller.workloads.pods.pod import parse_pod

    amounts = {CPU: "2500", MEMORY: "1Gi", BATCH: "1k"}
    main = {"name": "main", "image": "example.org/main:1"}
    spec = {"containers": [{**main, "resources": {"requests": amounts, "limits": amounts}}]}
    pod = cluster.make_pod(namespace, "batch", node=site.node, spec=spec)
    assert pod["status"]["qosClass"] == "BestEffort"
    assert parse_pod(pod).requests == {CPU: 2500, MEMORY: 1 << 30, BATCH: 1000}
