# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that request batch resources on a real node: CPUs in proportion, memory as a limit."""

from collections.abc import Iterator, Mapping
from pathlib import Path
import signal
import subprocess
import sys

import pytest

from tests.kube.client import Json
from tests.kube.cluster import resources
from tests.kube.limits import pod_cgroup, quota
from tests.kube.node_agent import HOG, SERVICE, Agent
from tests.kube.node_programs import NODE, container
from tests.kube.real_node import RealNode
from tests.support.waiting import DEADLINE_S

pytestmark = [pytest.mark.kernel, pytest.mark.kube]

CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
# In thousandths of a CPU; a request of the whole node or more would be no limit.
REQUESTS = {"one": 400, "two": 800, "four": 1600}
MIB = 1 << 20
# Takes three times the memory that the pod requested, once it may.
TAKES = "input(); x = bytearray(96 << 20)"


@pytest.fixture
def namespace(node: RealNode) -> Iterator[str]:
    """A new namespace on the node, with a service that suffers; the node has batch resources."""
    set_amounts(node, {CPU: "100k", MEMORY: "1Ti"})
    try:
        name = node.make_namespace(node.cluster.new_name("test"))
        node.run_pod(name, "web", resources("Burstable"), SERVICE)
        yield name
        for pod in node.cluster.admin.get(f"/api/v1/namespaces/{name}/pods")["items"]:
            node.delete_pod(name, pod["metadata"]["name"])
    finally:
        set_amounts(node, {CPU: None, MEMORY: None})


def set_amounts(node: RealNode, amounts: Mapping[str, str | None]) -> None:
    """Publish resources of the node, as a manager of its capacity does."""
    body = {"status": {"capacity": dict(amounts), "allocatable": dict(amounts)}}
    path = f"/api/v1/nodes/{NODE}/status"
    node.cluster.admin.call("PATCH", path, body, "application/merge-patch+json")


def take_memory(cgroup: Path) -> int:
    """Let a process in *cgroup* take more memory than it may have; return its exit code."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", TAKES], stdin=subprocess.PIPE
    ) as taker:
        # As those of a BestEffort pod, whose processes would be ended first otherwise.
        Path(f"/proc/{taker.pid}/oom_score_adj").write_text("1000")
        (cgroup / "cgroup.procs").write_text(str(taker.pid))
        taker.communicate(b"\n", timeout=DEADLINE_S)
        return taker.returncode


def batch(amounts: Mapping[str, int]) -> Json:
    texts = {name: str(amount) for name, amount in amounts.items()}
    return {"requests": texts, "limits": texts}


def complete(node: RealNode, namespace: str, agent: Agent, folder: Path) -> None:
    """Let a pod complete; the agent counts it, once it knew the pod."""
    main = container("main", {}, "until [ -e /out/end ]; do sleep 1; done")
    main["volumeMounts"] = [{"name": "out", "mountPath": "/out"}]
    volumes = [{"name": "out", "hostPath": {"path": str(folder)}}]
    spec = {"restartPolicy": "Never", "containers": [main], "volumes": volumes}
    node.run_pod(namespace, "short", {}, spec=spec)
    name = f"{namespace}/short"
    node.wait("it", lambda: name in {each["name"] for each in agent.status()["workloads"]})
    assert agent.status()["cluster"]["completed"] == 0
    (folder / "end").touch()
    node.wait("its end", lambda: agent.status()["cluster"]["completed"] == 1)


def test_batch_pods_share_a_squeeze_by_request_and_keep_to_their_memory(
    node: RealNode, namespace: str, tmp_path: Path
) -> None:
    pods = {
        name: pod_cgroup(node, node.run_pod(namespace, name, batch({CPU: amount}), HOG))
        for name, amount in REQUESTS.items()
    }
    agent = Agent(node, tmp_path, {"capacity": {"names": "koordinator"}}, floor="10mcpu")
    # On a busy machine work with the lowest weight uses too little to be limited.
    agent.start(yields=False)
    try:

        def share() -> bool:
            cpus = {name: quota(cgroup) for name, cgroup in pods.items()}
            parts = [(cpus[name] or 9.0) / amount for name, amount in REQUESTS.items()]
            # Without a squeeze each has its request.
            return max(parts) < 1e-4 and max(parts) <= 1.05 * min(parts)

        node.wait("a squeeze in proportion", share)
        greedy = node.run_pod(namespace, "greedy", batch({MEMORY: 32 * MIB}))
        folder = node.host.cgroup("memory", f"kubepods/besteffort/pod{greedy['metadata']['uid']}")
        limit = folder / "memory.limit_in_bytes"
        node.wait("its limit", lambda: limit.read_text() == f"{32 * MIB}\n")
        assert take_memory(folder) == -signal.SIGKILL
        complete(node, namespace, agent, tmp_path)
        for name in (*REQUESTS, "web", "greedy"):
            (status,) = node.pod(namespace, name)["status"]["containerStatuses"]
            assert status["restartCount"] == 0 and "running" in status["state"]
    finally:
        agent.stop()
    assert int(limit.read_text()) > 1 << 60
    assert {name: quota(cgroup) for name, cgroup in pods.items()} == dict.fromkeys(pods)
