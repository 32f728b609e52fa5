# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent on a Kubernetes node whose API server is unreachable or sends useless responses."""

from collections.abc import Iterator
import contextlib
import json
from pathlib import Path
import socket
import subprocess
import time
from typing import Any

import pytest

from controller.core.units import NS_PER_SEC
from controller.demo.programs import free_port
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun
from tests.kube.kubepods import Kubepods
from tests.support.http.raw_server import ok
from tests.support.http.status_pages import wait_for
from tests.support.kube.pod_server import PodServer, pod, refusal
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.apart, pytest.mark.thorough]

WEB = "00000000-0000-4000-8000-000000000001"
BATCH = "00000000-0000-4000-8000-000000000002"
PROXY = "00000000-0000-4000-8000-000000000003"
LATE = "00000000-0000-4000-8000-000000000004"
STATIC = "0123456789abcdef0123456789abcdef"
KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: none}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


class Node:
    """Pods in real cgroups with processes, and a configuration that relies on the cgroups."""

    def __init__(
        self, root: Path, layout: CgroupLayout, home: Path, kubeconfig: Path | None = None
    ) -> None:
        self.kubepods = Kubepods(root, layout)
        self.kubepods.make_qos_levels()
        self.port = free_port()
        self.config = home / "config.yaml"
        if kubeconfig is None:
            kubeconfig = home / "kubeconfig"
            kubeconfig.write_text(KUBECONFIG)
        self.config.write_text(
            f"mode: enforce\nhttp: 127.0.0.1:{self.port}\nstate_dir: {home}/state\n"
            f"data_dir: {home}/data\n"
            f"kubernetes:\n  node: n\n  kubeconfig: {kubeconfig}\n"
            f"  cgroup_roots: [{self.kubepods.config_root}]\n"
        )
        self.processes: list[subprocess.Popen[bytes]] = []
        self.web = self.start(WEB, "Burstable", 0)
        self.batch = self.start(BATCH, "BestEffort", 1000)

    def start(self, uid: str, qos: str, oom_score_adj: int) -> Path:
        """Make a pod with a process such as kubelet starts it, and return its cgroup."""
        pod = self.kubepods.pod(uid, qos)
        container = self.kubepods.make_container(pod, "ab" * 32)
        for score in (0, oom_score_adj):  # the sandbox, which every pod has, and a container
            process = subprocess.Popen(["sleep", "600"], start_new_session=True)
            self.processes.append(process)
            (container / "cgroup.procs").write_text(str(process.pid))
            Path(f"/proc/{process.pid}/oom_score_adj").write_text(str(score))
        return pod

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
            process.wait()

    @property
    def level(self) -> Path:
        return self.kubepods.qos_level("besteffort")

    def protected(self) -> bool:
        """Whether sched-idle is on the BestEffort pod; it is never on the level."""
        assert (self.level / "cpu.idle").read_text() == "0\n"
        return (self.batch / "cpu.idle").read_text() == "1\n"

    def classes(self, agent: AgentRun) -> dict[str, str]:
        """Return the classes of all workloads by the name of the cgroup."""
        workloads: list[dict[str, Any]] = agent.status()["workloads"]
        return {w["path"].rpartition("/")[2]: w["qos"] for w in workloads}


@pytest.fixture
def node(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Iterator[Node]:
    node = Node(cgroup_root, cgroup_layout, tmp_path)
    yield node
    node.close()


def listing(uid: str, qos: str) -> dict[str, Any]:
    """Return the pod of the cgroup *uid* as an API server lists it."""
    found = pod(f"pod-{uid[-2:]}", uid=uid)
    found["spec"]["nodeName"] = "n"
    found["status"]["qosClass"] = qos
    return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PodServer]:
    with PodServer(tmp_path) as server:
        server.pods = [listing(WEB, "Burstable"), listing(BATCH, "BestEffort")]
        yield server


@pytest.fixture
def listed_node(
    server: PodServer, cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path
) -> Iterator[Node]:
    with contextlib.closing(Node(cgroup_root, cgroup_layout, tmp_path, server.kubeconfig)) as node:
        yield node


def readiness(node: Node) -> tuple[int, str]:
    return wait_for(node.port, "/readyz")


def test_an_agent_that_never_saw_its_pods_is_not_ready_and_touches_none(node: Node) -> None:
    with AgentRun(node) as agent:
        eventually("a tick", lambda: agent.get("/healthz"))
        first_ns = agent.status()["time_ns"]
        # More than it takes to classify a pod by its cgroup.
        later_ns = first_ns + 12 * NS_PER_SEC
        eventually("scans", lambda: agent.status()["time_ns"] > later_ns)
        status, text = readiness(node)
        assert status == 503
        assert "not ready: pods: the API server has not sent the list of pods yet (" in text
        assert agent.status()["workloads"] == []
        assert not node.protected()
        assert agent.series("sweetpoint_source_degraded")["pods",] == 1
        assert agent.stop() == 0


def test_the_list_of_another_node_is_not_that_of_this_host(
    server: PodServer, listed_node: Node
) -> None:
    server.pods = [listing(LATE, "BestEffort")]  # runs elsewhere
    with AgentRun(listed_node) as agent:
        eventually("a tick", lambda: agent.get("/healthz"))
        eventually("the list", lambda: agent.status()["cluster"]["synced"])
        agent.watch(5)
        status, text = readiness(listed_node)
        assert status == 503
        assert "no pod in the list of node n has a cgroup on this host" in text
        assert not listed_node.protected()
        server.send_event("ADDED", listing(BATCH, "BestEffort"))
        agent.ready().enforcing()
        eventually("the page of that tick", lambda: agent.status()["cluster"]["matched"])
        assert agent.stop() == 0


def test_pods_that_are_not_listed_are_classified_by_their_cgroups_alone(
    server: PodServer, listed_node: Node
) -> None:
    node = listed_node
    server.pods = [listing(WEB, "Burstable")]
    node.start(STATIC, "Burstable", 0)
    with AgentRun(node) as agent:
        agent.ready().enforcing()
        expected = {
            f"pod{WEB}": "latency-sensitive",
            f"pod{BATCH}": "best-effort",
            f"pod{STATIC}": "system",
        }
        # A knob is written before the page of its tick is published.
        eventually("the page of that tick", lambda: node.classes(agent) == expected)
        assert not any(w["evictable"] for w in agent.status()["workloads"])
        cluster = agent.status()["cluster"]
        assert (cluster["synced"], cluster["pods"], cluster["unlisted"]) == (True, 1, 2)
        # A pod that may be kube-proxy starts among the BestEffort pods.
        proxy = node.start(PROXY, "BestEffort", 0)
        late = node.start(LATE, "BestEffort", 1000)
        eventually("the proxy", lambda: node.classes(agent).get(f"pod{PROXY}") == "system")
        eventually("idle", lambda: (late / "cpu.idle").read_text() == "1\n")
        assert (proxy / "cpu.idle").read_text() == "0\n"
        assert agent.stop() == 0
    assert not node.protected()
    assert (late / "cpu.idle").read_text() == "0\n"


def test_knobs_managed_by_another_agent_are_not_written(
    listed_node: Node, cgroup_layout: CgroupLayout
) -> None:
    node = listed_node
    # As koordlet's CPUSuppress does: one quota for all BestEffort pods.
    v2 = cgroup_layout.version == "v2"
    file, value = ("cpu.max", "50000 100000") if v2 else ("cpu.cfs_quota_us", "50000")
    (node.level / file).write_text(value)
    with AgentRun(node) as agent:
        agent.ready().enforcing()
        reason = f"another program set {file} of {node.kubepods.config_root}/besteffort"
        left = {"cpu.quota": reason}
        eventually("its page", lambda: agent.status()["cluster"]["left_knobs"] == left)
        knobs = {each["knob"] for each in agent.status()["knobs"]}
        assert "cpu.idle" in knobs, "other knobs are still ours"
        assert "cpu.quota" not in knobs
        assert agent.stop() == 0
    assert agent.output.count("cpu.quota is left alone: ") == 1
    assert (node.level / file).read_text().split()[0] == "50000"


@pytest.mark.soak
def test_failed_responses_of_the_server_change_nothing_on_the_node(
    server: PodServer, listed_node: Node
) -> None:
    node = listed_node
    late = listing(LATE, "BestEffort")

    def asked() -> int:
        return len(server.lists) + len(server.watches)

    def slowly(connection: socket.socket) -> None:
        items = {"metadata": {"resourceVersion": "1"}, "items": server.pods}
        for byte in (text := ok(json.dumps(items).encode()))[:40]:
            time.sleep(0.1)
            connection.sendall(bytes([byte]))
        connection.sendall(text[40:])

    with AgentRun(node) as agent:
        agent.ready().enforcing()
        eventually("the list", lambda: agent.status()["cluster"]["unlisted"] == 0)
        before, first = agent.status(), asked()
        server.script = [refusal(500, "InternalError")] * 2
        server.script += [refusal(429, "TooManyRequests", "Retry-After: 3"), slowly]
        server.cut()
        oldest_s = 0.0
        while server.script or agent.status()["cluster"]["problem"]:
            state = agent.status()
            assert state["workloads"] == before["workloads"]
            assert node.protected()
            oldest_s = max(oldest_s, state["cluster"]["age_s"])
            time.sleep(0.2)
        assert agent.status()["cluster"]["failed_requests"] == {"500": 2, "429": 1}
        assert oldest_s > 5
        assert asked() - first <= 6, "what failed, one list, one watch or two"
        server.send_event("ADDED", late)
        eventually("the late one", lambda: agent.status()["cluster"]["pods"] == 3)
        after = agent.status()
        assert after["tick"]["failed"] == 0
        assert after["tick"]["count"] - before["tick"]["count"] > 20
        assert agent.stop() == 0
