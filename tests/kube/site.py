# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent on a node of a cluster: its configuration, its credentials, its effects."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from controller.demo.programs import free_port
from tests.kernel.agent import AgentRun
from tests.kube.client import Client, Json
from tests.kube.cluster import Cluster
from tests.kube.kubelet import Kubelet, Running
from tests.support.waiting import eventually

__all__ = ("NodeSite", "stays", "ticks")

_KNOB_FILES = ("cpu.idle", "cpu.shares", "cpu.weight", "cpu.max", "cpu.cfs_*_us")


class NodeSite:
    """The site for ``AgentRun`` to run the agent on the node of *kubelet* with a token.

    ``client`` has the agent's token, so that a test can try the agent's permissions. The agent uses
    the API server at *url*, by default its own address.
    """

    def __init__(
        self,
        cluster: Cluster,
        kubelet: Kubelet,
        home: Path,
        client: Client,
        url: str | None = None,
    ) -> None:
        self.cluster, self.kubelet, self.home, self.client = cluster, kubelet, home, client
        self.port = free_port()
        self.config = home / "config.yaml"
        self._kubeconfig = cluster.kubeconfig(home / "agent.kubeconfig", client, url)
        self.write()

    def write(self, extra: str = "", mode: str = "enforce", kubernetes: str = "") -> None:
        """Write the configuration; *kubernetes* is added to that section, *extra* at the end.

        The cgroups of the pods are named, because a search finds those of other tests' nodes too.
        """
        self.config.write_text(
            f"mode: {mode}\n"
            f"http: 127.0.0.1:{self.port}\n"
            f"state_dir: {self.home}/state\ndata_dir: {self.home}/data\n"
            "kubernetes:\n"
            f"  node: {self.kubelet.node}\n"
            f"  kubeconfig: {self._kubeconfig}\n"
            f"  cgroup_roots: [{self.kubelet.kubepods.config_root}]\n"
            f"{kubernetes}"
            f"{extra}"
        )

    def idle(self, cgroup: Path) -> bool:
        """Whether *cgroup* is sched-idle now."""
        return (cgroup / "cpu.idle").read_text().strip() == "1"

    def lightest(self, cgroup: Path) -> bool:
        """Whether *cgroup* has the lowest weight now."""
        file, least = {"v1": ("cpu.shares", 2), "v2": ("cpu.weight", 1)}[
            self.kubelet.kubepods.layout.version
        ]
        return int((cgroup / file).read_text()) == least

    def protected(self) -> bool:
        """Whether any cgroup of the node is sched-idle."""
        root = self.kubelet.kubepods.root
        return any(file.read_text().strip() == "1" for file in root.rglob("cpu.idle"))

    def knobs(self) -> dict[str, str]:
        """Return every knob file of the node's pods."""
        root = self.kubelet.kubepods.root
        return {
            str(file.relative_to(root)): file.read_text()
            for pattern in _KNOB_FILES
            for file in sorted(root.rglob(pattern))
        }

    def workload(self, agent: AgentRun, pod: Running) -> Json | None:
        """Return the workload of *pod*, or of a container of it, from /statusz, if there is one."""
        kubepods = self.kubelet.kubepods
        path = f"/{pod.cgroup.relative_to(kubepods.layout.mount)}/"
        every: list[Any] = agent.status()["workloads"]
        return next((w for w in every if f"{w['path']}/".startswith(path)), None)

    def age_s(self, agent: AgentRun) -> float:
        """Return the age of the agent's list of pods from /statusz."""
        return float(agent.status()["cluster"]["age_s"])


def ticks(agent: AgentRun) -> int:
    """Return the number of ticks that the agent has made."""
    return int(agent.status()["tick"]["count"])


def stays(what: str, agent: AgentRun, holds: Callable[[], bool], more: int = 10) -> None:
    """Assert that *holds* is true until the agent has made *more* ticks."""
    last = ticks(agent) + more

    def is_over() -> bool:
        now = ticks(agent)
        assert holds(), f"not any more: {what}"
        return now >= last

    eventually(f"{more} ticks", is_over)
