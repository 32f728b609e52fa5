# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Sweet points from ServiceProfileDescriptors of a real API server, with list and watch only."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.config.sections.eviction import KubeEvictionConfig
from controller.config.sections.kubernetes import KubernetesConfig, ServiceProfiles
from controller.kube.client.api import Api
from controller.kube.client.watch import CollectionWatch
from controller.kube.profile_descriptors import DescriptorProfiles
from controller.workloads.pods.classify import ClassRules
from controller.workloads.pods.requests import NETWORK_QOS
from tests.kernel.agent import AgentRun
from tests.kube.client import Client, Refused
from tests.kube.cluster import Cluster
from tests.kube.katalyst import RULE, install, make_descriptor, path
from tests.kube.kubelet import Kubelet
from tests.kube.site import NodeSite
from tests.support.kube.limits import PATIENT
from tests.support.waiting import eventually

pytestmark = pytest.mark.kube

TARGET = {"kind": "StatefulSet", "name": "web"}


@pytest.fixture
def client(cluster: Cluster, namespace: str) -> Client:
    """Return a client that may list and watch descriptors and pods."""
    install(cluster)
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    cluster.grant(namespace, "default", [RULE, pods])
    client = cluster.client(namespace, "default")
    # A new role takes effect at the server's authorizer after a moment.
    eventually("the role", lambda: may_list(client))
    return client


def may_list(client: Client) -> bool:
    try:
        client.get(path("default"))
    except Refused:
        return False
    return True


@pytest.fixture
def descriptors(
    cluster: Cluster, namespace: str, client: Client, tmp_path: Path
) -> Iterator[DescriptorProfiles]:
    config = KubernetesConfig(
        node="n",
        kubeconfig=None,
        system_namespaces=(),
        trusted_namespaces=(namespace,),
        cgroup_roots=None,
        eviction=KubeEvictionConfig(),
        service_profiles=ServiceProfiles.TRUSTED,
    )
    api = Api(cluster.kubeconfig(tmp_path / "kubeconfig", client), PATIENT)
    found = DescriptorProfiles(api, config, ClassRules())
    yield found
    found.close()
    assert found.failure is None and not found.errors


def test_changes_are_read_and_changes_of_the_status_are_ignored(
    cluster: Cluster, namespace: str, descriptors: DescriptorProfiles
) -> None:
    other = cluster.make_namespace(cluster.new_name("other"))
    make_descriptor(cluster, other, "web-spd", TARGET, cpi=1.4)
    make_descriptor(cluster, namespace, "web-spd", TARGET, cpi=1.4)
    eventually("the descriptor", lambda: descriptors.state.known == 1)
    known = descriptors._index
    business = [{"name": "RPCLatency", "current": 20}]
    status = {"status": {"businessStatus": business}}
    cluster.admin.patch(f"{path(namespace, 'web-spd')}/status", status)
    make_descriptor(cluster, namespace, "db-spd", {**TARGET, "name": "db"}, cpi=2)
    eventually("the other descriptor", lambda: descriptors.state.known == 2)
    first, second = known._by_name, descriptors._index._by_name
    assert first.items() <= second.items() and len(second) == 2
    cluster.admin.delete(path(namespace, "web-spd"))
    eventually("the deletion", lambda: descriptors.state.known == 1)
    assert not descriptors.state.unreadable


def test_a_kind_that_does_not_exist(cluster: Cluster, tmp_path: Path) -> None:
    api = Api(cluster.kubeconfig(tmp_path / "kubeconfig", cluster.admin), PATIENT)
    nowhere = "/apis/example.org/v1/things"
    taken: list[object] = []
    watch = CollectionWatch(api, "Things", nowhere, {}, parse=str, publish=taken.append)
    eventually("the answer", lambda: watch.errors)
    watch.close()
    assert watch.problem.startswith("404 ") and watch.errors == {"404": 1} and not taken


@pytest.mark.soak
@pytest.mark.kernel
def test_a_pod_gets_the_sweet_points_of_its_workload(
    cluster: Cluster, namespace: str, client: Client, kubelet: Kubelet, tmp_path: Path
) -> None:
    site = NodeSite(cluster, kubelet, tmp_path, client)
    site.write(
        mode="observe",
        kubernetes=f"  service_profiles: trusted\n  trusted_namespaces: [{namespace}]\n",
    )
    made = cluster.make_pod(namespace, "web-0", node=kubelet.node, qos="Burstable", owner=TARGET)
    pod = kubelet.start(made)
    tailored = f"default+{namespace}/web-spd"

    def profile() -> str | None:
        found = site.workload(agent, pod)
        return None if found is None else found["profile"]

    def point() -> float | None:
        loops = agent.status()["plan"]["loops"]
        found = (each for each in loops if each["indicator"] == "wait_ratio")
        return next((float(each["sweet_point"]) for each in found), None)

    with AgentRun(site) as agent:
        agent.ready()
        eventually("the pod", lambda: profile() == "default")
        assert point() is None
        make_descriptor(cluster, namespace, "web-spd", TARGET, cpu_sched_wait=1000)
        eventually("the derived profile", lambda: profile() == tailored)
        eventually("the sweet point", lambda: point() == 0.5)
        cluster.admin.patch(
            path(namespace, "web-spd"),
            {
                "spec": {
                    "systemIndicator": [
                        {
                            "name": "cpu_sched_wait",
                            "indicators": [{"indicatorLevel": "LowerBound", "value": 250}],
                        }
                    ]
                }
            },
        )
        eventually("the new sweet point", lambda: point() == 0.2)
        workload = site.workload(agent, pod)
        assert workload is not None and workload["service"] == f"{namespace}/web@default"
        told = agent.status()["cluster"]["service_profiles"]
        assert told["in_use"] == {tailored: "wait_ratio 0.2 (cpu_sched_wait LowerBound 250)"}
        assert "sweetpoint_kube_service_profiles_used 1.0" in (agent.get("/metrics") or "")
        cluster.admin.delete(path(namespace, "web-spd"))
        eventually("the original profile", lambda: profile() == "default")
        assert point() is None
        assert agent.status()["tick"]["failed"] == 0


@pytest.mark.soak
@pytest.mark.kernel
def test_a_limit_that_cannot_be_enforced_is_reported_while_its_pod_exists(
    cluster: Cluster, namespace: str, client: Client, kubelet: Kubelet, tmp_path: Path
) -> None:
    site = NodeSite(cluster, kubelet, tmp_path, client)
    site.write(mode="observe")
    said = {NETWORK_QOS: '{"ingressLimit": "10M", "egressLimit": "20M"}'}
    with AgentRun(site) as agent:
        agent.ready()
        assert agent.status()["link_problems"] == {}
        made = cluster.make_pod(namespace, "batch", node=kubelet.node, annotations=said)
        kubelet.start(made)
        problems = eventually("the problem", lambda: agent.status()["link_problems"])
        assert "no link is shaped" in problems["pod_limits"]
        assert 'sweetpoint_link_problem{device="pod_limits"' in (agent.get("/metrics") or "")
        cluster.admin.delete(f"/api/v1/namespaces/{namespace}/pods/batch")
        eventually("no problem", lambda: agent.status()["link_problems"] == {})
        assert agent.status()["tick"]["failed"] == 0
