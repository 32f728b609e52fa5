# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Containers that the agent was told of before they ran are without a trace of it afterwards.

Also after the container runtime has written all limits of them again.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
import re

import pytest

from tests.kube.client import Json
from tests.kube.cluster import resources
from tests.kube.limits import (
    cpu,
    pod_cgroup,
    quota,
    resize,
    squeezed,
    statuses,
    wait_for_resize,
)
from tests.kube.node_agent import BATCH, HOG, SERVICE, Agent
from tests.kube.real_node import RealNode

pytestmark = [pytest.mark.kernel, pytest.mark.kube]

FILES = {
    "cpu": ("cpu.cfs_*_us", "cpu.idle", "cpu.shares", "cpu.rt_*_us"),
    "cpuset": ("cpuset.cpus", "cpuset.mems"),
    "memory": ("memory.*limit_in_bytes", "memory.swappiness", "memory.oom_control"),
    "blkio": ("blkio.*weight*", "blkio.throttle.*_device"),
}
_ID = re.compile("[0-9a-f]{64}")
Amounts = Mapping[str, Json]


def guaranteed(limit: str) -> Json:
    return {kind: {"cpu": limit, "memory": "64Mi"} for kind in ("limits", "requests")}


# Of three pods by their names, the last one of the QoS class BestEffort.
FIRST: Amounts = {"burstable": cpu("500m"), "guaranteed": guaranteed("300m"), "plain": {}}
SECOND: Amounts = {"burstable": cpu("600m", "100m"), "guaranteed": guaranteed("200m")}


@pytest.fixture
def namespace(node: RealNode) -> Iterator[str]:
    """A new namespace on the node, with a service that suffers."""
    name = node.make_namespace(node.cluster.new_name("test"))
    node.run_pod(name, "web", resources("Burstable"), SERVICE)
    yield name
    for pod in node.cluster.admin.get(f"/api/v1/namespaces/{name}/pods")["items"]:
        node.delete_pod(name, pod["metadata"]["name"])


@pytest.fixture
def agent(node: RealNode, namespace: str, tmp_path: Path) -> Iterator[Agent]:
    """The agent, not started yet."""
    agent = Agent(node, tmp_path, nri={"enabled": "on", "answer_within": "1s"})
    yield agent
    agent.stop()


class Pods:
    """Pods of this *namespace* with the limits ``FIRST``, made at once; they use a CPU each."""

    def __init__(self, node: RealNode, namespace: str, prefix: str) -> None:
        self._node, self._namespace = node, namespace
        self._pods = {
            kind: node.run_pod(namespace, f"{prefix}-{kind}", amounts, HOG, labels=BATCH)
            for kind, amounts in FIRST.items()
        }

    def knobs(self) -> dict[str, str]:
        """Return every knob of the pods, without what is different in each pod."""
        found = {}
        for kind, pod in self._pods.items():
            path = pod_cgroup(self._node, pod).relative_to(self._node.host.cgroup("cpu"))
            for controller, patterns in FILES.items():
                root = self._node.host.cgroup(controller, str(path))
                own = statuses(self._node.pod(self._namespace, pod["metadata"]["name"]))["main"]
                main = own["containerID"].removeprefix("containerd://")
                for file in (each for pattern in patterns for each in root.rglob(pattern)):
                    name = str(file.relative_to(root)).replace(main, "main")
                    found[f"{kind}/{_ID.sub('sandbox', name)}"] = file.read_text()
        return found

    def resize(self) -> None:
        """Have the container runtime write the limits ``SECOND``, with all others."""
        for kind, amounts in SECOND.items():
            containers = [{"name": "main", "resources": amounts}]
            resize(self._node, self._pods[kind], {"containers": containers})
        for kind, amounts in SECOND.items():
            wait_for_resize(self._node, self._pods[kind], "main", amounts)

    def are_squeezed(self) -> bool:
        """Whether each pod or its container has a quota of the agent, and the lowest weight."""
        for kind, pod in self._pods.items():
            path = pod_cgroup(self._node, pod)
            if kind == "plain":
                if quota(path) is None or (path / "cpu.idle").read_text() != "1\n":
                    return False
                continue
            squeezed(self._node, pod, "main")
            if (path / "cpu.shares").read_text() != "2\n":
                return False
        return True

    def delete(self) -> None:
        """Delete the pods."""
        for pod in self._pods.values():
            self._node.delete_pod(self._namespace, pod["metadata"]["name"])


def kill_and_release(agent: Agent) -> None:
    agent.kill()
    agent.release()


def test_containers_that_the_agent_was_told_of_are_as_without_it(
    node: RealNode, namespace: str, agent: Agent
) -> None:
    without = Pods(node, namespace, "without")
    made = without.knobs()
    without.resize()
    resized = without.knobs()
    assert made != resized
    without.delete()
    ends: dict[str, Callable[[], None]] = {
        "stopped": agent.stop,
        "killed": lambda: kill_and_release(agent),
    }
    for how, end in ends.items():
        agent.start()
        agent.wait_for_plugin()
        pods = Pods(node, namespace, how)
        # Of each pod its sandbox and its container.
        node.wait("the answers", lambda: agent.answers() >= 2 * len(FIRST))
        node.wait("a squeeze", pods.are_squeezed)
        assert pods.knobs() != made
        end()
        assert pods.knobs() == made, how
        pods.resize()
        assert pods.knobs() == resized, how
        pods.delete()
