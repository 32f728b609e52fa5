# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""kubelet's static CPU manager on a real node: its file, and the sets of pods beside an agent.

On cgroup v1 the agent leaves the sets alone; what it writes on v2 is tested in the test kernel.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.core.units import parse_cpu_list
from controller.host.exclusive_cpus import KUBELET_STATE, read_state
from tests.kube.limits import cgroup, statuses
from tests.kube.node_agent import Agent
from tests.kube.real_node import RealNode
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.kube]

WHOLE_CPU = {"cpu": "1", "memory": "64Mi"}


@pytest.fixture
def state(node: RealNode) -> Iterator[Path]:
    """kubelet's file, on a node whose kubelet has the static policy during the test."""
    path = node.host.file(f"/var/lib/kubelet/{KUBELET_STATE.name}")
    with_policy(node, path, {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"})
    try:
        yield path
    finally:
        with_policy(node, path, {})


def with_policy(node: RealNode, state: Path, options: dict[str, object]) -> None:
    """Start kubelet again with other *options*."""
    node.stop("kubelet")
    state.unlink(missing_ok=True)  # kubelet refuses that of another policy
    node.kubelet_options = options
    node.start_kubelet()


@pytest.fixture
def namespace(node: RealNode, state: Path) -> Iterator[str]:
    """A new namespace; its pods end before kubelet has its usual policy again."""
    name = node.make_namespace(node.cluster.new_name("test"))
    yield name
    for pod in node.cluster.admin.get(f"/api/v1/namespaces/{name}/pods")["items"]:
        node.delete_pod(name, pod["metadata"]["name"])


def cpus_of(node: RealNode, namespace: str, name: str) -> frozenset[int]:
    """Return the CPUs of the container of a pod."""
    below = cgroup(node, node.pod(namespace, name), "main")
    path = below.relative_to(node.host.cgroup("cpu"))
    text = (node.host.cgroup("cpuset", str(path)) / "cpuset.cpus").read_text()
    return frozenset(parse_cpu_list(text))


def test_a_pod_with_a_cpu_of_its_own_starts_beside_the_agent(
    node: RealNode, state: Path, namespace: str, tmp_path: Path
) -> None:
    agent = Agent(node, tmp_path)
    agent.start()
    try:
        node.run_pod(namespace, "batch", {})
        assert read_state(state) == frozenset()
        every = cpus_of(node, namespace, "batch")
        node.run_pod(namespace, "alone", {"requests": WHOLE_CPU, "limits": WHOLE_CPU})
        own = cpus_of(node, namespace, "alone")
        assert len(own) == 1 and own < every
        assert read_state(state) == own
        # kubelet's own loop of 10 s; a set of the agent on the level would make it fail on v1.
        eventually("kubelet's set", lambda: cpus_of(node, namespace, "batch") == every - own)
        node.run_pod(namespace, "later", {})
        assert cpus_of(node, namespace, "later") == every - own
        node.delete_pod(namespace, "alone")
        eventually("no exclusive CPU", lambda: not read_state(state))
        eventually("all CPUs", lambda: cpus_of(node, namespace, "batch") == every)
        for name in ("batch", "later"):
            (status,) = statuses(node.pod(namespace, name)).values()
            assert status["restartCount"] == 0 and "running" in status["state"]
    finally:
        agent.stop()
