# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A real overload on a node: the culprit is evicted, nobody else, and the mark comes and goes."""

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import signal
import subprocess
import sys
from typing import Any

import pytest

from controller.kube.mark import MARK
from tests.kernel.agent import AgentRun, eventually
from tests.kernel.loads import Load, loads
from tests.kube.cluster import Cluster
from tests.kube.kubelet import Kubelet, Running
from tests.kube.site import NodeSite

pytestmark = [pytest.mark.kube, pytest.mark.kernel, pytest.mark.soak]

RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
]
# A sweet point that no squeeze reaches: best-effort work keeps half a CPU, and is in the way.
PROFILE = """\
name: strict
indicators:
  runq_p99: {sweet_point: 5us, resolution: 1us, window: 1s, filter: 0s, gains: {kp: 1, ti: 200ms}}
channels: [cpu]
sched_idle: false
be_share_min: 5%
knobs: {cpu.quota: {floor: 300mcpu, squeeze: 10/s}}
evict: {enabled: true, after: 2s}
"""
SECONDS = 120.0


class Stage:
    """A service and two best-effort pods, one of which is in its way."""

    def __init__(self, cluster: Cluster, kubelet: Kubelet, namespace: str, site: NodeSite) -> None:
        self.cluster, self.namespace, self.site = cluster, namespace, site
        labels = {"sweetpoint.dev/profile": "strict"}
        self.web = self._start(kubelet, "web", "Burstable", labels)
        self.hog = self._start(kubelet, "hog", "BestEffort", {"app": "hog"})
        self.mouse = self._start(kubelet, "mouse", "BestEffort", {"app": "mouse"})

    def _start(self, kubelet: Kubelet, name: str, qos: str, labels: dict[str, str]) -> Running:
        pod = self.cluster.make_pod(self.namespace, name, node=kubelet.node, qos=qos, labels=labels)
        return kubelet.start(pod)

    @contextlib.contextmanager
    def pain(self) -> Iterator[None]:
        wanted = (Load(self.web.container, "bursts", 0), Load(self.hog.container, "hog", 0))
        with loads(wanted, SECONDS) as running:
            running.start()
            yield

    def marks(self) -> list[Any]:
        node = self.cluster.admin.get(f"/api/v1/nodes/{self.site.kubelet.node}")
        return [each for each in node["spec"].get("taints", []) if each["key"] == MARK]

    def reasons(self) -> set[str]:
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        return {event["reason"] for event in self.cluster.admin.get(path)["items"]}


@pytest.fixture
def stage(cluster: Cluster, namespace: str, kubelet: Kubelet, tmp_path: Path) -> Stage:
    cluster.grant(namespace, "default", RULES)
    site = NodeSite(cluster, kubelet, tmp_path, cluster.client(namespace, "default"))
    (tmp_path / "strict.yaml").write_text(PROFILE)
    write(site)
    return Stage(cluster, kubelet, namespace, site)


def write(site: NodeSite, mode: str = "enforce") -> None:
    site.write(
        extra="profiles: [strict.yaml]\n", mode=mode, kubernetes="  eviction: {enabled: true}\n"
    )


def test_a_budget_holds_the_culprit_back(stage: Stage, kubelet: Kubelet) -> None:
    cluster, namespace = stage.cluster, stage.namespace
    cluster.make_budget(namespace, "budget", {"app": "hog"}, allowed=0)
    with AgentRun(stage.site) as agent, stage.pain():
        agent.ready()
        eventually("a refusal", 40, lambda: "EvictionRefused" in stage.reasons())
        assert kubelet.ended == []
        assert stage.marks() == []
        text = agent.get("/metrics") or ""
        assert 'sweetpoint_evictions_total{reason="cpu",result="refused"} 1.0' in text
        assert agent.stop() == 0


def test_the_culprit_is_evicted_and_the_mark_goes_with_the_agent(
    stage: Stage, kubelet: Kubelet
) -> None:
    with AgentRun(stage.site) as agent, stage.pain():
        agent.ready()
        eventually("an eviction", 40, lambda: kubelet.ended)
        assert kubelet.ended == [stage.hog.uid]
        assert stage.marks() == [{"key": MARK, "effect": "PreferNoSchedule"}]
        eventually("the Event", 5, lambda: "Evicted" in stage.reasons())
        told = stage.cluster.kubectl("get", "events", "-n", stage.namespace, "-o", "wide")
        assert "suffers on cpu" in told and "its sweet point is 5us" in told
        assert "BestEffortSqueezed" in told
        # Killed, it cannot take the mark back; who is started next does.
        guardian, child = agent.pids()
        for pid in (guardian, child):
            os.kill(pid, signal.SIGKILL)
        agent.wait()
        assert stage.marks()
        with AgentRun(stage.site) as again:
            again.ready()
            eventually("the mark's end", 10, lambda: not stage.marks())
            assert again.stop() == 0
    assert stage.mouse.cgroup.exists()


def test_release_takes_the_mark_back(stage: Stage, kubelet: Kubelet) -> None:
    with AgentRun(stage.site) as agent, stage.pain():
        agent.ready()
        eventually("an eviction", 40, lambda: kubelet.ended)
        for pid in agent.pids():
            os.kill(pid, signal.SIGKILL)
        agent.wait()
    assert stage.marks()
    state = str(stage.site.home / "state")
    done = subprocess.run(
        [sys.executable, "-m", "controller.cli", "release", "--state-dir", state],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, stage.marks()) == (0, []), done.stderr
    assert "the mark is taken back" in done.stdout


def test_who_observes_tells_whom_it_would_evict(stage: Stage, kubelet: Kubelet) -> None:
    write(stage.site, mode="observe")
    with AgentRun(stage.site) as agent, stage.pain():
        agent.ready()
        eventually("its words", 40, lambda: "WouldEvict" in stage.reasons())
        assert kubelet.ended == []
        assert stage.marks() == []
        assert agent.stop() == 0
