# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A real overload on a node: the culprit goes, nobody else, and the mark comes and goes.

The agent has its chart's service account and role, and the shares of blame are the default ones.
"""

from collections.abc import Iterator
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import pytest

from controller.kube.overload_taint import TAINT_KEY
from tests.kernel.agent import AgentRun, eventually
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh
from tests.kube.cluster import Cluster
from tests.kube.kubelet import Kubelet
from tests.kube.overloaded import OverloadedNode, hurting

pytestmark = [pytest.mark.kube, pytest.mark.kernel]

# Longer than any case takes.
WORK_S = 150.0
# From the start of an overload to the eviction takes a third of this.
PATIENCE_S = 40


@pytest.fixture
def node(
    cluster: Cluster, namespace: str, kubelet: Kubelet, tmp_path: Path
) -> Iterator[OverloadedNode]:
    yield OverloadedNode(cluster, namespace, kubelet, tmp_path)


@pytest.fixture(scope="session")
def kube_system(cluster: Cluster) -> None:
    """The service account of pods in that namespace, which the server makes itself."""
    cluster.make_service_account("kube-system", "default")


def kill(agent: AgentRun) -> None:
    """End guardian and agent so that neither can undo anything."""
    for pid in agent.pids():
        os.kill(pid, signal.SIGKILL)
    agent.wait()


def test_the_culprit_goes_and_nobody_else(node: OverloadedNode) -> None:
    hog, mouse = node.hog(), node.mouse()
    work = (*node.pain(hog), Load(mouse.container, "bursts", CPU))
    with loads(work, WORK_S) as running, AgentRun(node.site) as agent:
        agent.ready()
        running.start()
        eventually("the end of the hog", PATIENCE_S, lambda: node.ended)
        assert node.ended == [hog.uid]
        assert not hog.cgroup.exists() and mouse.cgroup.exists()
        eventually("the mark", 10, node.marks)
        assert node.marks() == [{"key": TAINT_KEY, "effect": "PreferNoSchedule"}]
        event = eventually("an Event", 10, lambda: node.events(hog).get("Evicted"))
        assert agent.stop() == 0
    assert event["type"] == "Warning"
    assert f"{node.namespace}/web@tight suffers on cpu" in event["message"]
    assert "it made latency-sensitive work wait" in event["message"]
    assert "its sweet point is 100us" in event["message"]
    assert "BestEffortSqueezed" in node.events(node.web)
    assert node.marks() == []
    assert node.ended == [hog.uid] and node.events(mouse) == {}


@pytest.mark.soak
def test_budgets_hold_the_culprits_back_and_nobody_goes_for_them(node: OverloadedNode) -> None:
    hogs, mouse = [node.hog("hog-0"), node.hog("hog-1")], node.mouse()
    for hog in hogs:
        node.cluster.make_budget(node.namespace, hog.name, {"app": hog.name}, allowed=0)
    work = (*node.pain(*hogs), Load(mouse.container, "bursts", CPU))
    with loads(work, WORK_S) as running, AgentRun(node.site) as agent:
        agent.ready()
        running.start()
        # Both are guilty: who may not go makes room for the other one.
        for hog in hogs:
            eventually(
                "a refusal", PATIENCE_S, lambda hog=hog: "EvictionRefused" in node.events(hog)
            )
        time.sleep(10)
        assert hurting(agent), "it is not better"
        refused = 'sweetpoint_evictions_total{reason="cpu",result="refused"} 2.0'
        assert refused in (agent.get("/metrics") or "")
        assert node.marks() == []
        assert agent.stop() == 0
    assert node.ended == [] and node.events(mouse) == {}


@pytest.mark.soak
def test_the_mark_of_who_was_killed_goes_at_the_next_start_which_evicts_nobody_too_soon(
    node: OverloadedNode,
) -> None:
    hogs = [node.hog("hog-0"), node.hog("hog-1")]
    with loads(node.pain(*hogs), WORK_S) as running:
        with AgentRun(node.site) as agent:
            agent.ready()
            running.start()
            eventually("an eviction", PATIENCE_S, lambda: node.ended)
            kill(agent)
        assert node.marks()
        with AgentRun(node.site) as again:
            again.ready()
            eventually("the mark's end", 10, lambda: not node.marks())
            time.sleep(20)
            assert hurting(again), "the other one is still there"
            assert len(node.ended) == 1 and not node.marks()
            assert again.stop() == 0


@pytest.mark.soak
def test_release_takes_the_mark_back(node: OverloadedNode) -> None:
    with loads(node.pain(node.hog()), WORK_S) as running, AgentRun(node.site) as agent:
        agent.ready()
        running.start()
        eventually("an eviction", PATIENCE_S, lambda: node.ended)
        kill(agent)
    assert node.marks()
    state = str(node.site.home / "state")
    done = subprocess.run(
        [sys.executable, "-m", "controller.cli.main", "release", "--state-dir", state],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, node.marks()) == (0, []), done.stderr
    assert "the overload taint was removed" in done.stdout


@pytest.mark.soak
def test_the_mark_ends_when_its_time_is_over(node: OverloadedNode) -> None:
    node.write(eviction=", mark_for: 1m")
    with loads(node.pain(node.hog()), WORK_S) as running, AgentRun(node.site) as agent:
        agent.ready()
        running.start()
        eventually("an eviction", PATIENCE_S, lambda: node.ended)
        eventually("the mark", 10, node.marks)
        time.sleep(50)
        assert node.marks()
        eventually("the mark's end", 25, lambda: not node.marks())
        eventually("a word of it", 5, lambda: agent.status()["cluster"]["marked_until_s"] is None)
        assert agent.stop() == 0


@pytest.mark.soak
def test_who_observes_tells_whom_it_would_evict(node: OverloadedNode) -> None:
    node.write(mode="observe")
    hog, mouse = node.hog(), node.mouse()
    with loads(node.pain(hog), WORK_S) as running, AgentRun(node.site) as agent:
        agent.ready()
        running.start()
        event = eventually("its words", PATIENCE_S, lambda: node.events(hog).get("WouldEvict"))
        assert "the agent only observes" in event["message"]
        assert node.marks() == [] and agent.stop() == 0
    assert node.ended == [] and node.events(mouse) == {}


@pytest.mark.soak
@pytest.mark.parametrize("culprit", ["itself", "a system pod"])
@pytest.mark.usefixtures("kube_system")
def test_nobody_goes_for_what_others_did(node: OverloadedNode, culprit: str) -> None:
    mouse = node.mouse()
    work = [*node.pain(), Load(mouse.container, "bursts", CPU)]
    if culprit == "itself":
        work += [Load(node.web.container, "hog", CPU)] * 3
    else:
        agent_of_the_node = node.start("node-agent", "Burstable", namespace="kube-system")
        outweigh(agent_of_the_node.cgroup)
        work.append(Load(agent_of_the_node.container, "hog", CPU))
    with loads(work, WORK_S) as running, AgentRun(node.site) as agent:
        agent.ready()
        running.start()
        eventually("pain", PATIENCE_S, lambda: hurting(agent))
        time.sleep(30)
        assert hurting(agent), "it is not better"
        (demand,) = agent.status()["plan"]["demands"]
        assert (demand["state"], demand["applied"]) == ("not-be", 0.0)
        assert agent.stop() == 0
    assert node.ended == [] and node.marks() == []
    assert node.events(mouse) == {} and "BestEffortSqueezed" not in node.events(node.web)
