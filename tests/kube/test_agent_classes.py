# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent on a node: every pod gets the class of its labels and its namespace."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kernel.agent import AgentRun
from tests.kube.cluster import Cluster
from tests.kube.kubelet import Kubelet, Running
from tests.kube.kubepods import DRIVERS, Kubepods
from tests.kube.site import NodeSite
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kube, pytest.mark.kernel]

OWN = "sweetpoint.dev/qos"
KOORDINATOR = "koordinator.sh/qosClass"
KATALYST = "katalyst.kubewharf.io/qos_level"
MIRROR = "kubernetes.io/config.mirror"
HASH = "kubernetes.io/config.hash"
SYSTEM, LS, BE = "system", "latency-sensitive", "best-effort"


class Case(NamedTuple):
    """A pod and its expected class."""

    name: str
    qos: str
    expected: str
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    priority_class: str = ""
    trusted: bool = False


CASES = (
    Case("besteffort", "BestEffort", BE),
    Case("burstable", "Burstable", LS),
    Case("guaranteed", "Guaranteed", LS),
    Case("own-lowers", "Burstable", BE, {OWN: BE}),
    Case("own-cannot-raise", "BestEffort", BE, {OWN: LS}),
    Case("own-cannot-be-system", "Burstable", LS, {OWN: SYSTEM}),
    Case("own-nonsense", "Burstable", LS, {OWN: "platinum"}),
    Case("own-before-others", "Guaranteed", BE, {OWN: BE, KOORDINATOR: "LSR"}),
    Case("koordinator-be", "Burstable", BE, {KOORDINATOR: "BE"}),
    Case("koordinator-lsr", "Guaranteed", LS, {KOORDINATOR: "LSR"}),
    Case("koordinator-cannot-raise", "BestEffort", BE, {KOORDINATOR: "LSE"}),
    Case("koordinator-cannot-be-system", "Burstable", LS, {KOORDINATOR: "SYSTEM"}),
    Case("katalyst-reclaimed", "Burstable", BE, annotations={KATALYST: "reclaimed_cores"}),
    Case("katalyst-dedicated", "Guaranteed", LS, annotations={KATALYST: "dedicated_cores"}),
    Case("katalyst-cannot-raise", "BestEffort", BE, annotations={KATALYST: "shared_cores"}),
    Case("contradiction", "Burstable", LS, {KOORDINATOR: "BE"}, {KATALYST: "dedicated_cores"}),
    Case("critical", "Burstable", SYSTEM, {OWN: BE}, priority_class="system-node-critical"),
    Case("trusted-raises", "BestEffort", LS, {OWN: LS}, trusted=True),
    Case("trusted-system", "Burstable", SYSTEM, {KOORDINATOR: "SYSTEM"}, trusted=True),
)
# In a system namespace, whatever their labels; the cgroup of a static pod has its hash.
MANIFEST = "0123456789abcdef0123456789abcdef"
SYSTEM_CASES = (
    Case("kube-proxy", "BestEffort", SYSTEM, {OWN: BE}),
    Case("static", "Burstable", SYSTEM, annotations={MIRROR: MANIFEST, HASH: MANIFEST}),
)


@pytest.fixture(params=DRIVERS)
def kubepods(kubepods: Kubepods, request: pytest.FixtureRequest) -> Kubepods:
    return Kubepods(kubepods.base, kubepods.layout, request.param, "crio")


@pytest.fixture
def site(cluster: Cluster, namespace: str, kubelet: Kubelet, tmp_path: Path) -> Iterator[NodeSite]:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    cluster.grant(namespace, "default", rules)
    yield NodeSite(cluster, kubelet, tmp_path, cluster.client(namespace, "default"))


def start(site: NodeSite, namespace: str, case: Case) -> Running:
    spec = {"priorityClassName": case.priority_class} if case.priority_class else {}
    pod = site.cluster.make_pod(
        namespace,
        case.name,
        node=site.kubelet.node,
        qos=case.qos,
        labels=case.labels,
        annotations=case.annotations,
        spec=spec,
    )
    return site.kubelet.start(pod)


def test_every_pod_gets_its_class_and_only_best_effort_ones_are_touched(
    cluster: Cluster, namespace: str, site: NodeSite
) -> None:
    trusted = cluster.make_namespace(cluster.new_name("trusted"))
    system = cluster.make_namespace(cluster.new_name("system"))
    site.write(
        kubernetes=f"  trusted_namespaces: [{trusted}]\n  system_namespaces: [{system}]\n",
    )

    def start_all(cases: Sequence[Case]) -> list[tuple[Case, Running]]:
        return [(c, start(site, trusted if c.trusted else namespace, c)) for c in cases]

    pods = start_all(CASES[:-4])
    pods += [(case, start(site, system, case)) for case in SYSTEM_CASES]
    before = site.knobs()
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        pods += start_all(CASES[-4:])  # while it runs
        eventually("all classes", lambda: classes(site, agent, pods) == expected(pods))
        names = {f"{pod.pod['metadata']['namespace']}/{pod.name}" for _, pod in pods}
        found = [w["name"].split("/") for w in agent.status()["workloads"]]
        assert {"/".join(parts[:2]) for parts in found} == names
        best_effort = [pod.cgroup for case, pod in pods if case.expected == BE]
        idle = [pod.cgroup for case, pod in pods if (case.expected, case.qos) == (BE, "BestEffort")]
        light = [cgroup for cgroup in best_effort if cgroup not in idle]
        eventually("all to be protected", lambda: all(map(site.idle, idle)))
        # kubelet would write the weight of these pods at a resize.
        eventually("the lowest weights", lambda: all(map(site.lightest, light)))
        # Pods that were started later are not in `before`.
        now = site.knobs()
        touched = {name.rpartition("/")[0] for name in before if now[name] != before[name]}
        root = site.kubelet.kubepods.root
        assert touched and touched <= {str(path.relative_to(root)) for path in best_effort}
        assert not any(site.idle(pod.cgroup) for _, pod in pods if pod.cgroup not in idle)
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop() == 0
    after = site.knobs()
    assert {name: after[name] for name in before} == before


def classes(
    site: NodeSite, agent: AgentRun, pods: Sequence[tuple[Case, Running]]
) -> dict[str, str | None]:
    found = {case.name: site.workload(agent, pod) for case, pod in pods}
    return {name: None if answer is None else answer["qos"] for name, answer in found.items()}


def expected(pods: Sequence[tuple[Case, Running]]) -> dict[str, str]:
    return {case.name: case.expected for case, _ in pods}
