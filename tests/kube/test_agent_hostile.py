# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pods with hostile labels and annotations, through a real API server: one log line each."""

from pathlib import Path

import pytest

from tests.kernel.agent import AgentRun
from tests.kube.client import Refused
from tests.kube.cluster import Cluster
from tests.kube.kubelet import Kubelet, Running
from tests.kube.site import NodeSite
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kube, pytest.mark.kernel]

KATALYST = "katalyst.kubewharf.io/qos_level"
STATIC = "kubernetes.io/config"
# Labels, annotations, and the expected problem.
PODS = {
    "raised": ({"sweetpoint.dev/qos": "system"}, {}, "would raise it above"),
    "torn": ({"koordinator.sh/qosClass": "LS"}, {KATALYST: "reclaimed_cores"}, "contradict"),
    "huge": ({}, {KATALYST: "x" * 200 * 1024}, f"{KATALYST}: too long, not read"),
    "bomb": ({}, {KATALYST: '{"a":' * 800}, "is none of dedicated_cores"),
    "deep": ({}, {"koordinator.sh/networkQOS": "[" * 4000}, "is not a JSON object"),
    "wide": (
        {},
        {"koordinator.sh/networkQOS": f'{{"egressLimit": {"9" * 4000}}}'},
        "koordinator.sh/networkQOS",
    ),
    "lines": ({}, {KATALYST: "a\nERROR all is lost\x1b[2J"}, "is none of dedicated_cores"),
    "path": ({}, {"koordinator.sh/core-sched-group-id": "../../etc"}, "is not a name"),
    "x" * 253: ({"koordinator.sh/qosClass": "SYSTEM"}, {}, "would raise it above"),
    # A pod that claims to be the agent: its labels are not wrong and have no effect.
    "sweetpoint-agent": (
        {"app.kubernetes.io/name": "sweetpoint", "app": "sweetpoint"},
        {f"{STATIC}.source": "file", "sweetpoint.dev/uid": "me"},
        "",
    ),
}
# Names that the server refuses; `parse_pod` refuses them too.
NAMES = ("..", "../../etc", "a/b", "a\0b", "a\nb", "-a", "x" * 254)


@pytest.fixture
def site(cluster: Cluster, namespace: str, kubelet: Kubelet, tmp_path: Path) -> NodeSite:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    cluster.grant(namespace, "default", rules)
    return NodeSite(cluster, kubelet, tmp_path, cluster.client(namespace, "default"))


def test_they_keep_the_class_of_kubernetes_and_get_one_line_each(
    site: NodeSite, namespace: str
) -> None:
    def start(name: str) -> Running:
        labels, annotations, _ = PODS[name]
        pod = site.cluster.make_pod(
            namespace, name, node=site.kubelet.node, labels=labels, annotations=annotations
        )
        return site.kubelet.start(pod)

    running = {name: start(name) for name in PODS}
    # Not started: its uid, the hash of its manifest, is a path.
    static = {f"{STATIC}.mirror": "x", f"{STATIC}.hash": "../../../etc"}
    site.cluster.make_pod(namespace, "static", node=site.kubelet.node, annotations=static)
    with AgentRun(site) as agent:
        agent.ready()

        def listed() -> tuple[int, int]:
            cluster = agent.status()["cluster"]
            return cluster["refused"], cluster["pods"]

        # The first list may be older than the last pods; until then they have other names.
        eventually("the whole list", lambda: listed() == (1, len(PODS)))
        eventually("all pods", lambda: all(site.workload(agent, pod) for pod in running.values()))
        for name, pod in running.items():
            found = site.workload(agent, pod)
            assert found is not None
            assert (found["name"], found["qos"]) == (f"{namespace}/{name}", "best-effort")
            assert (found["evictable"], found["core_group"]) == (True, "")
        problems = agent.status()["cluster"]["label_problems"]
        assert listed() == (1, len(PODS))
        metrics = eventually("the metrics", lambda: agent.get("/metrics"))
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop() == 0
    said = {name: text for name, (_, _, text) in PODS.items() if text}
    assert problems.keys() == {f"{namespace}/{name}" for name in said}
    assert metrics.count("\nsweetpoint_kube_label_problem{") == len(said)
    for name, text in {**said, "static": "'../../../etc' is not the id of a pod"}.items():
        lines = [line for line in agent.output.splitlines() if f"{namespace}/{name}: " in line]
        assert len(lines) == 1, lines
        assert text in lines[0]
        assert lines[0].isprintable()
        assert len(lines[0]) < 1000
    assert not any(line.startswith("ERROR") for line in agent.output.splitlines())


def test_no_name_is_a_path(site: NodeSite, namespace: str) -> None:
    for name in NAMES:
        with pytest.raises(Refused) as refusal:
            site.cluster.make_pod(namespace, name, node=site.kubelet.node)
        assert refusal.value.status == 422, name
