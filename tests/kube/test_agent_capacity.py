# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent offers reclaimable capacity, limits pods to what they requested, and withdraws it."""

from collections.abc import Iterator
from pathlib import Path
import signal
from typing import Any

import pytest

from controller.kube.extended_resources import STAMP
from tests.kernel.agent import AgentRun
from tests.kube.cluster import Cluster
from tests.kube.kubelet import Kubelet, Running
from tests.kube.site import NodeSite
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kube, pytest.mark.kernel]

CPU, MEMORY = "sweetpoint.dev/cpu", "sweetpoint.dev/memory"
RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
]
SECTION = "  capacity: {enabled: true, interval: 1s, rise: 2s, change: 1%}\n"


@pytest.fixture
def site(cluster: Cluster, namespace: str, kubelet: Kubelet, tmp_path: Path) -> Iterator[NodeSite]:
    cluster.grant(namespace, "default", RULES)
    yield NodeSite(cluster, kubelet, tmp_path, cluster.client(namespace, "default"))


def node(site: NodeSite) -> dict[str, Any]:
    return site.cluster.admin.get(f"/api/v1/nodes/{site.kubelet.node}")


def amount(site: NodeSite, name: str) -> str | None:
    found: str | None = node(site)["status"]["allocatable"].get(name)
    return found


def batch(site: NodeSite, namespace: str) -> Running:
    amounts = {CPU: "300", MEMORY: "1Gi"}
    main = {"name": "main", "image": "example.org/main:1"}
    spec = {"containers": [{**main, "resources": {"requests": amounts, "limits": amounts}}]}
    pod = site.cluster.make_pod(namespace, "batch", node=site.kubelet.node, spec=spec)
    return site.kubelet.start(pod)


def quota_cpus(pod: Running) -> float | None:
    v1 = pod.cgroup / "cpu.cfs_quota_us"
    if v1.exists():
        quota, period = v1.read_text(), (pod.cgroup / "cpu.cfs_period_us").read_text()
    else:
        quota, period = (pod.cgroup / "cpu.max").read_text().split()
    return None if quota.strip() in ("-1", "max") else int(quota) / int(period)


def test_offer_limit_and_end(site: NodeSite, namespace: str) -> None:
    site.write(kubernetes=SECTION)
    with AgentRun(site) as agent:
        agent.ready()
        # A machine that is busy with other work has no CPU to offer, but a measured amount of it.
        eventually("an offer", lambda: amount(site, CPU))
        eventually("an offer of memory", lambda: amount(site, MEMORY) not in (None, "0"))
        assert STAMP in node(site)["metadata"]["annotations"]
        pod = batch(site, namespace)
        eventually("the limit", lambda: quota_cpus(pod) == pytest.approx(0.3, rel=0.01))
        granted = f'sweetpoint_reclaimable_granted{{resource="{CPU}"}} 300.0'
        eventually("the granted amount", lambda: granted in (agent.get("/metrics") or ""))
        fresh = f'sweetpoint_reclaimable_stale{{resource="{CPU}"}} 0.0'
        eventually("a measured amount", lambda: fresh in (agent.get("/metrics") or ""))
        assert agent.stop(signal.SIGTERM) == 0
    assert quota_cpus(pod) is None
    assert (amount(site, CPU), amount(site, MEMORY)) == (None, None)
    assert STAMP not in node(site)["metadata"].get("annotations", {})


def test_observe_mode_removes_the_offer_of_a_killed_run(site: NodeSite, namespace: str) -> None:
    site.write(kubernetes=SECTION)
    with AgentRun(site, "--no-guardian") as agent:
        agent.ready()
        eventually("an offer", lambda: amount(site, CPU))
        agent.stop(signal.SIGKILL)
    assert amount(site, CPU) is not None
    site.write(mode="observe", kubernetes=SECTION)
    with AgentRun(site) as agent:
        agent.ready()
        eventually("the removal", lambda: amount(site, CPU) is None)
        pod = batch(site, namespace)
        eventually("the pod", lambda: site.workload(agent, pod))
        assert quota_cpus(pod) is None
