# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A whole agent with classes for disks: at its start, after reloads, and at its end."""

from pathlib import Path
import signal

import pytest

from controller.demo.programs import free_port
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun
from tests.kernel.disks import disk_at
from tests.kernel.knobs import dump
from tests.kernel.without import BLIND
from tests.kube.kubepods import Kubepods
from tests.support.kube.pod_server import NODE, PodServer
from tests.support.kube.pod_server import pod as raw_pod
from tests.support.waiting import eventually

# An agent takes a minute to start in the guest.
pytestmark = [pytest.mark.vm, pytest.mark.soak]

CHOICE = {"blockio.resources.beta.kubernetes.io/pod": "gold"}
DISK = "/dev/vda"


class Node:
    """A service and a best-effort pod, both of which choose the class gold."""

    def __init__(self, root: Path, layout: CgroupLayout, server: PodServer) -> None:
        (root / "cgroup.subtree_control").write_text("+io")
        self._kubepods, self._server = Kubepods(root, layout), server
        self._kubepods.make_qos_levels()
        self.web, self.job = self._start("web", "Burstable"), self._start("job", "BestEffort")
        (self.web / "io.weight").write_text("123")
        self.port, self._home = free_port(), server.kubeconfig.parent
        self.config = self._home / "config.yaml"

    def _start(self, name: str, qos: str) -> Path:
        raw = raw_pod(name, annotations=CHOICE)
        raw["status"]["qosClass"] = qos
        raw["spec"]["containers"] = [{"name": "main"}]
        self._server.pods.append(raw)
        pod = self._kubepods.pod(raw["metadata"]["uid"], qos)
        self._kubepods.make_container(pod, "ab" * 32)
        return pod

    def write(self, classes: str) -> None:
        """Write the configuration with these classes."""
        self.config.write_text(
            f"mode: enforce\nhttp: 127.0.0.1:{self.port}\nstate_dir: {self._home}/state\n"
            f"data_dir: {self._home}/data\nsafe_state: static\n"
            f"io: {{iocost: auto, classes: {{{classes}}}}}\n"
            f"kubernetes:\n  node: {NODE}\n  kubeconfig: {self._server.kubeconfig}\n"
            f"  cgroup_roots: [{self._kubepods.config_root}]\n"
        )

    def protected(self) -> bool:
        """Whether best-effort work is idle."""
        return (self.job / "cpu.idle").read_text() == "1\n"

    def io(self, pod: Path) -> tuple[str, str]:
        """Return the weight and the limits of *pod* for disks."""
        weight = (pod / "io.weight").read_text().split()[1]
        return weight, (pod / "io.max").read_text().strip()


def test_classes_are_written_at_the_start_after_a_reload_and_given_back(
    cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path
) -> None:
    number = disk_at(DISK).number
    with PodServer(tmp_path) as server:
        node = Node(cgroup_root, cgroup_layout, server)
        before, job = dump(cgroup_root), node.io(node.job)
        limits = f"{{{DISK}: {{read_iops: 999}}}}"
        node.write(f"gold: {{weight: 800, limits: {limits}, annotation: true}}")
        with AgentRun(node, "--no-guardian", without=BLIND) as agent:

            def reload(classes: str, *expected: str) -> None:
                node.write(classes)
                agent.process.send_signal(signal.SIGHUP)
                eventually(classes, lambda: node.io(node.web) == expected or agent.has_ended())
                assert node.io(node.web) == expected

            full = ("800", f"{number} rbps=max wbps=max riops=999 wiops=max")
            eventually("the class", lambda: node.io(node.web) == full or agent.has_ended())
            assert node.io(node.web) == full
            agent.enforcing()
            reload("gold: {weight: 300, annotation: true}", "300", "")
            # A class that pods may not choose, and none of the chosen name.
            reload("gold: {weight: 300}", "123", "")
            reload("lead: {weight: 700, koordinator: [LS]}", "700", "")
            reload("", "123", "")
            reload("gold: {weight: 900, annotation: true}", "900", "")
            assert node.io(node.job) == job, "best-effort work has no class"
            assert agent.status()["tick"]["failed"] == 0
            assert agent.stop() == 0
        assert "restart" not in agent.output
        assert dump(cgroup_root) == before
