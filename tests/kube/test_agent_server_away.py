# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent while its API server is down, silent, or closes every connection."""

from collections.abc import Iterator
from pathlib import Path
import re
import time

import pytest

from tests.kernel.agent import AgentRun
from tests.kernel.footprint import footprint
from tests.kernel.loads import Load, loads
from tests.kube.cable import Cable
from tests.kube.cluster import Cluster
from tests.kube.kubelet import Kubelet, Running
from tests.kube.overloaded import OverloadedNode, hurting
from tests.kube.site import NodeSite, ticks
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kube, pytest.mark.kernel]

BE, LS = "best-effort", "latency-sensitive"
NEW_BATCH = "00000000-0000-4000-8000-00000000000b"
NEW_SERVICE = "00000000-0000-4000-8000-00000000000c"
# One may count that began before the request.
TICKS = 4


@pytest.fixture
def site(
    cluster: Cluster, namespace: str, kubelet: Kubelet, tmp_path: Path, cable: Cable
) -> NodeSite:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    cluster.grant(namespace, "default", rules)
    client = cluster.client(namespace, "default")
    return NodeSite(cluster, kubelet, tmp_path, client, url=cable.url)


def start(site: NodeSite, namespace: str, name: str, qos: str) -> Running:
    pod = site.cluster.make_pod(namespace, name, node=site.kubelet.node, qos=qos)
    return site.kubelet.start(pod)


def knows(site: NodeSite, agent: AgentRun, pod: Running) -> bool:
    return site.workload(agent, pod) is not None


def classes(agent: AgentRun) -> dict[str, str]:
    """Return the classes of all workloads by name."""
    return {w["name"]: w["qos"] for w in agent.status()["workloads"]}


def cache_age_s(agent: AgentRun) -> float:
    """Return the age of the list of pods from /metrics."""
    name = "sweetpoint_kube_cache_age_seconds "
    (line,) = (x for x in (agent.get("/metrics") or "").splitlines() if x.startswith(name))
    return float(line.removeprefix(name))


def ticks_of_a_request(agent: AgentRun, cable: Cable) -> Iterator[int]:
    """Yield, again and again, how many ticks the agent has made during the present request."""
    begun, ended, first = cable.connections, failures(agent), None
    while True:
        now = ticks(agent)
        if begun != (begun := cable.connections):
            first = now
        if ended != (ended := failures(agent)):
            first = None
        yield 0 if first is None else now - first


def failures(agent: AgentRun) -> int:
    """Return the number of requests that the agent has seen fail."""
    return sum(agent.status()["cluster"]["failed_requests"].values())


def make_unlisted(site: NodeSite, uid: str, qos: str) -> Load:
    """Make a pod's cgroup, as kubelet does without its server, and return a load for it."""
    kubepods = site.kubelet.kubepods
    return Load(kubepods.make_container(kubepods.pod(uid, qos), "cd" * 32), "idle")


def first_to_die(container: Path) -> None:
    """Set the OOM score that kubelet sets for the processes of a BestEffort pod."""
    for pid in (container / "cgroup.procs").read_text().split():
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


@pytest.mark.soak
def test_classes_are_kept_while_the_server_is_down_and_updated_afterwards(
    site: NodeSite, namespace: str, cable: Cable
) -> None:
    service = start(site, namespace, "web", "Burstable")
    batch = start(site, namespace, "batch", "BestEffort")
    plane = site.cluster.plane
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        time.sleep(5)
        known, knobs, held = agent.status()["workloads"], site.knobs(), footprint(agent)
        plane.stop_server()
        try:
            before, began = cable.connections, time.monotonic()
            while time.monotonic() < began + 45:
                time.sleep(1)
                assert agent.status()["workloads"] == known
                assert site.knobs() == knobs
            # Kubelet keeps starting pods: these are known by their cgroups only.
            new_batch = make_unlisted(site, NEW_BATCH, "BestEffort")
            new_service = make_unlisted(site, NEW_SERVICE, "Burstable")
            with loads((new_batch, new_service)) as running:
                first_to_die(new_batch.cgroup)
                running.start()
                expected = {f"pod:{NEW_BATCH}": BE, f"pod:{NEW_SERVICE}": LS}
                expected |= {w["name"]: w["qos"] for w in known}
                eventually("the new pods", lambda: classes(agent) == expected)
                time.sleep(max(0.0, began + 60 - time.monotonic()))
                assert cache_age_s(agent) > 55
                assert site.age_s(agent) > 55
                assert 1 <= cable.connections - before < 60, "a hot loop, or none"
                assert agent.status()["cluster"]["failed_requests"]["unreachable"] >= 1
                assert all(knows(site, agent, pod) for pod in (service, batch))
        finally:
            plane.start_server()
        late_pod = start(site, namespace, "late", "BestEffort")
        eventually("the late pod", lambda: knows(site, agent, late_pod))
        assert cache_age_s(agent) < 5
        assert all(knows(site, agent, pod) for pod in (service, batch))
        time.sleep(5)
        state, now = agent.status(), footprint(agent)
        print(
            f"\n{cable.connections - before} connections; fds {held.fds} -> {now.fds}, "
            f"{(now.pss_bytes - held.pss_bytes) / 2**20:+.1f} MiB"
        )
        # Two more services, with three pressure files each if the kernel has PSI.
        assert now.fds <= held.fds + 6
        assert now.threads <= held.threads + 1
        assert now.pss_bytes < held.pss_bytes + 4 * 2**20
        assert state["tick"]["failed"] == 0
        assert agent.stop() == 0


@pytest.mark.soak
def test_evictions_are_held_and_logged_while_the_server_is_down(
    cluster: Cluster, namespace: str, kubelet: Kubelet, tmp_path: Path
) -> None:
    node = OverloadedNode(cluster, namespace, kubelet, tmp_path)
    hog = node.hog()
    with loads(node.pain(hog)) as running, AgentRun(node.site) as agent:
        agent.ready()
        eventually("the pods", lambda: all(knows(node.site, agent, p) for p in (hog, node.web)))
        cluster.plane.stop_server()
        try:
            running.start()
            held = re.compile(r'evictions_total{reason="cpu",result="held"} [1-9]')
            eventually("a held eviction", lambda: held.search(agent.get("/metrics") or ""))
            time.sleep(5)
            assert hurting(agent)
            assert hog.cgroup.exists()
        finally:
            cluster.plane.start_server()
        eventually("the end of the hog", lambda: node.ended)
        assert node.ended == [hog.uid]
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop() == 0
    assert "eviction held: " in agent.output


def test_interrupted_watches_are_resumed(site: NodeSite, namespace: str, cable: Cable) -> None:
    start(site, namespace, "web", "Burstable")
    with AgentRun(site) as agent:
        agent.ready()
        listed: dict[str, str] = {}
        for number in range(3):
            before = cable.connections
            cable.cut()
            pod = start(site, namespace, f"batch-{number}", "BestEffort")
            # By its name: after 5 s without an answer it is known by its cgroup.
            listed[f"{namespace}/{pod.name}"] = BE
            eventually("the pod", lambda: listed.items() <= classes(agent).items())
            assert cable.connections > before
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop() == 0


def test_the_tick_does_not_wait_for_a_silent_server(
    site: NodeSite, namespace: str, cable: Cable
) -> None:
    start(site, namespace, "web", "Burstable")
    with AgentRun(site) as agent:
        agent.ready()
        seen = ticks_of_a_request(agent, cable)
        cable.hold()
        cable.cut()  # so that the agent sends requests that get no response
        # A tick that waits for a request counts when that has ended.
        eventually("ticks during one request", lambda: next(seen) >= TICKS)
        assert agent.stop() == 0
