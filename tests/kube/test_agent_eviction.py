# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A real overload on a node: only the culprit is evicted, and the taint is set and removed.

The agent has its chart's service account and role, and the default limits of blame.
"""

from collections.abc import Iterator
from functools import partial
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import pytest

from controller.kube.overload_taint import TAINT_KEY
from tests.kernel.agent import AgentRun
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh
from tests.kube.cluster import Cluster
from tests.kube.kubelet import Kubelet, Running
from tests.kube.overloaded import OverloadedNode, hurting
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = [pytest.mark.kube, pytest.mark.kernel, pytest.mark.usefixtures("alone_on_cpu")]


@pytest.fixture
def node(
    cluster: Cluster, namespace: str, kubelet: Kubelet, tmp_path: Path
) -> Iterator[OverloadedNode]:
    yield OverloadedNode(cluster, namespace, kubelet, tmp_path)


@pytest.fixture(scope="session")
def kube_system(cluster: Cluster) -> None:
    """The service account of pods in kube-system, a namespace that the server creates itself."""
    cluster.make_service_account("kube-system", "default")


def kill(agent: AgentRun) -> None:
    """Kill guardian and agent so that neither restores anything."""
    for pid in agent.pids():
        os.kill(pid, signal.SIGKILL)
    agent.wait()


def is_refused(node: OverloadedNode, pod: Running) -> bool:
    """Whether an Event says that the eviction of *pod* was refused."""
    return "EvictionRefused" in node.events(pod)


def test_only_the_culprit_is_evicted(node: OverloadedNode) -> None:
    hog, mouse = node.hog(), node.mouse()
    work = (*node.pain(hog), Load(mouse.container, "bursts", CPU))
    with loads(work) as running, AgentRun(node.site) as agent:
        agent.ready()
        running.start()
        eventually("the end of the hog", lambda: node.ended)
        assert node.ended == [hog.uid]
        assert not hog.cgroup.exists() and mouse.cgroup.exists()
        eventually("the taint", node.taints)
        assert node.taints() == [{"key": TAINT_KEY, "effect": "PreferNoSchedule"}]
        event = eventually("an Event", lambda: node.events(hog).get("Evicted"))
        assert agent.stop() == 0
    assert event is not None and event["type"] == "Warning"
    assert f"{node.namespace}/web@tight suffers on cpu" in event["message"]
    assert "it made latency-sensitive work wait" in event["message"]
    assert "its sweet point is 100us" in event["message"]
    assert "BestEffortSqueezed" in node.events(node.web)
    assert node.taints() == []
    assert node.ended == [hog.uid] and node.events(mouse) == {}


@pytest.mark.soak
def test_no_pod_is_evicted_in_place_of_culprits_with_a_budget(node: OverloadedNode) -> None:
    hogs, mouse = [node.hog("hog-0"), node.hog("hog-1")], node.mouse()
    for hog in hogs:
        node.cluster.make_budget(node.namespace, hog.name, {"app": hog.name}, allowed=0)
    work = (*node.pain(*hogs), Load(mouse.container, "bursts", CPU))
    with loads(work) as running, AgentRun(node.site) as agent:
        agent.ready()
        running.start()
        # Both have enough blame: after the refusal of one the other is tried.
        for hog in hogs:
            eventually("a refusal", partial(is_refused, node, hog))
        time.sleep(10)
        assert hurting(agent), "the service still suffers"
        refused = 'sweetpoint_evictions_total{reason="cpu",result="refused"} 2.0'
        assert refused in (agent.get("/metrics") or "")
        assert node.taints() == []
        assert agent.stop() == 0
    assert node.ended == [] and node.events(mouse) == {}


@pytest.mark.soak
def test_the_next_start_removes_the_taint_of_a_killed_agent_and_respects_the_cool_down(
    node: OverloadedNode,
) -> None:
    hogs = [node.hog("hog-0"), node.hog("hog-1")]
    with loads(node.pain(*hogs)) as running:
        with AgentRun(node.site) as agent:
            agent.ready()
            running.start()
            eventually("an eviction", lambda: node.ended)
            kill(agent)
        assert node.taints()
        with AgentRun(node.site) as again:
            again.ready()
            eventually("the end of the taint", lambda: not node.taints())
            time.sleep(20)
            assert hurting(again), "the other hog is still there"
            assert len(node.ended) == 1 and not node.taints()
            assert again.stop() == 0


@pytest.mark.soak
def test_release_removes_the_taint(node: OverloadedNode) -> None:
    with loads(node.pain(node.hog())) as running, AgentRun(node.site) as agent:
        agent.ready()
        running.start()
        eventually("an eviction", lambda: node.ended)
        kill(agent)
    assert node.taints()
    state = str(node.site.home / "state")
    done = subprocess.run(
        [sys.executable, "-m", "controller.cli.main", "release", "--state-dir", state],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, node.taints()) == (0, []), done.stderr
    assert "the overload taint was removed" in done.stdout


@pytest.mark.soak
def test_the_taint_expires(node: OverloadedNode) -> None:
    node.write(eviction=", mark_for: 1m")
    with loads(node.pain(node.hog())) as running, AgentRun(node.site) as agent:
        agent.ready()
        running.start()
        eventually("an eviction", lambda: node.ended)
        eventually("the taint", node.taints)
        time.sleep(50)
        assert node.taints()
        eventually("the end of the taint", lambda: not node.taints())
        eventually("/statusz", lambda: agent.status()["cluster"]["marked_until_s"] is None)
        assert agent.stop() == 0


@pytest.mark.soak
def test_observe_mode_reports_the_pod_that_would_be_evicted(node: OverloadedNode) -> None:
    node.write(mode="observe")
    hog, mouse = node.hog(), node.mouse()
    with loads(node.pain(hog)) as running, AgentRun(node.site) as agent:
        agent.ready()
        running.start()
        event = eventually("the Event", lambda: node.events(hog).get("WouldEvict"))
        assert event is not None and "the agent only observes" in event["message"]
        assert node.taints() == [] and agent.stop() == 0
    assert node.ended == [] and node.events(mouse) == {}


@pytest.mark.soak
@pytest.mark.parametrize("culprit", ["itself", "a system pod"])
@pytest.mark.usefixtures("kube_system")
def test_no_pod_is_evicted_for_an_overload_that_best_effort_did_not_cause(
    node: OverloadedNode, culprit: str
) -> None:
    mouse = node.mouse()
    work = [*node.pain(), Load(mouse.container, "bursts", CPU)]
    if culprit == "itself":
        work += [Load(node.web.container, "hog", CPU)] * 3
    else:
        agent_of_the_node = node.start("node-agent", "Burstable", namespace="kube-system")
        outweigh(agent_of_the_node.cgroup)
        work.append(Load(agent_of_the_node.container, "hog", CPU))
    with loads(work) as running, AgentRun(node.site) as agent:
        agent.ready()
        running.start()
        eventually("the overload", lambda: hurting(agent))
        time.sleep(30)
        assert hurting(agent), "the service still suffers"
        (demand,) = agent.status()["plan"]["demands"]
        assert (demand["state"], demand["applied"]) == ("not-be", 0.0)
        assert agent.stop() == 0
    assert node.ended == [] and node.taints() == []
    assert node.events(mouse) == {} and "BestEffortSqueezed" not in node.events(node.web)
