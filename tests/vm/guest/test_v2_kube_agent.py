# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent on a Kubernetes node with cgroup v2, resctrl and core scheduling.

Hardware counters are not emulated: the profile uses the CPU pressure of the service instead. The
monitors of resctrl read values that the test sets. The agent runs without bcc, because compiling
the probes takes 1.5 minutes in the guest.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
import json
from pathlib import Path
import signal
import subprocess
import sys
from typing import Any

import pytest

from actuators.core_scheduling.prctl import cookie_of
from controller.demo.programs import free_port
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun
from tests.kernel.knobs import dump
from tests.kernel.loads import Load, loads
from tests.kernel.without import BLIND
from tests.kube.kubepods import Driver, Kubepods
from tests.support.kube.pod_server import NODE, PodServer
from tests.support.kube.pod_server import pod as raw_pod
from tests.support.waiting import eventually
from tests.vm.guest.resctrl import GROUP, OURS, group_of, groups, mounted, move, sleepers
from tests.vm.guest.test_resctrl_monitor import counter, rmid_of

pytestmark = [pytest.mark.vm, pytest.mark.soak]

MIB = 1 << 20
REQUESTS = {"sweetpoint.dev/cpu": "300", "sweetpoint.dev/memory": "48Mi"}
PROFILE = """\
name: default
indicators:
  psi_cpu: {sweet_point: 0.2%, channel: cache, filter: 0s}
"""


class Node:
    """A service and a best-effort pod with a capacity request, served by a test API server.

    ``dump`` returns all state that the agent may change, as the kernel shows it.
    """

    def __init__(self, root: Path, layout: CgroupLayout, driver: Driver, server: PodServer) -> None:
        (root / "cgroup.subtree_control").write_text("+cpu +memory")
        self.root = root
        self.kubepods = Kubepods(root, layout, driver)
        self.kubepods.make_qos_levels()
        limits = {"resources": {"requests": REQUESTS, "limits": REQUESTS}}
        self.web, self.service = self.start_pod(server, "web", "Burstable", {})
        self.batch, self.best_effort = self.start_pod(server, "batch", "BestEffort", limits)
        self.pids: list[int] = []
        home = server.kubeconfig.parent
        self.port, self.state_dir = free_port(), home / "state"
        (home / "default.yaml").write_text(PROFILE)
        self.config = home / "config.yaml"
        self.config.write_text(
            f"mode: enforce\nhttp: 127.0.0.1:{self.port}\nstate_dir: {self.state_dir}\n"
            f"data_dir: {home}/data\n"
            "profiles: [default.yaml]\ncore_scheduling: {mode: on}\nresctrl: {rmid_reserve: 4}\n"
            f"kubernetes:\n  node: {NODE}\n  kubeconfig: {server.kubeconfig}\n"
            f"  cgroup_roots: [{self.kubepods.config_root}]\n"
        )

    def start_pod(
        self, server: PodServer, name: str, qos: str, container: Mapping[str, Any]
    ) -> tuple[Path, Path]:
        """List a pod with one container; return the cgroups of both."""
        raw = raw_pod(name)
        raw["status"]["qosClass"] = qos
        raw["spec"]["containers"] = [{"name": "main", **container}]
        server.pods.append(raw)
        pod = self.kubepods.pod(raw["metadata"]["uid"], qos)
        return pod, self.kubepods.make_container(pod, "ab" * 32)

    def protected(self) -> bool:
        return (self.batch / "cpu.idle").read_text() == "1\n"

    _counted = 0

    def squeezed(self) -> bool:
        """Raise the bandwidth of best-effort work; return whether its cache ways were reduced."""
        for group in OURS.glob("mon_groups/sweetpoint-*"):
            rmid = rmid_of(group)
            self._counted += 1000
            counter(rmid, "mbm_total", self._counted)
        return "L3:0=7ff" not in groups().get(GROUP, "L3:0=7ff")

    def dump(self) -> dict[str, object]:
        return {
            **dump(self.root),
            "groups": groups(),
            "resctrl": [group_of(pid) for pid in self.pids],
            "cookies": [cookie_of(pid) for pid in self.pids],
        }


@contextmanager
def running(node: Node) -> Iterator[tuple[int, int]]:
    """Run two tasks of the service that compete for a CPU, and one of the best-effort pod."""
    bursts = [Load(node.service, "bursts", 0)] * 2
    with sleepers(1) as (batch,), loads(bursts) as service:
        move([batch], node.best_effort)
        web = int((node.service / "cgroup.procs").read_text().split()[0])
        node.pids = [web, batch]
        service.start()
        yield web, batch


@pytest.mark.parametrize(("driver", "end"), [("systemd", "kill -9"), ("cgroupfs", "SIGTERM")])
def test_all_knobs_are_written_and_restored(
    cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path, driver: Driver, end: str
) -> None:
    # bcc is hidden by a mount in the agent's mount namespace; resctrl is mounted outside of it.
    with mounted(), PodServer(tmp_path) as server:
        node = Node(cgroup_root, cgroup_layout, driver, server)
        with running(node) as (web, batch):
            before = node.dump()
            alone = ("--no-guardian",) if end == "kill -9" else ()
            with AgentRun(node, *alone, without=BLIND) as agent:
                agent.enforcing()  # without probes it never becomes ready
                eventually("a cookie", lambda: cookie_of(batch))
                eventually("the group", lambda: group_of(batch) == GROUP)
                eventually("fewer ways", node.squeezed)
                high = node.batch / "memory.high"
                eventually("memory.high", lambda: high.read_text() == f"{48 * MIB}\n")
                quota, period = map(int, (node.batch / "cpu.max").read_text().split())
                assert quota / period == pytest.approx(0.3, rel=0.01)
                assert (cookie_of(web), group_of(web)) == (0, "/")
                assert (node.web / "cpu.max").read_text().split()[0] == "max"
                if end == "kill -9":
                    assert agent.stop(signal.SIGKILL) == -signal.SIGKILL
                    assert node.dump() != before
                    assert cookie_of(batch), "restored before the release command"
                    release(node)
                else:
                    assert agent.stop() == 0
                    explain(node)
            assert node.dump() == before


def explain(node: Node) -> None:
    """Check that the history names the channel, the service and the cache ways."""
    data_dir = f"{node.config.parent}/data"
    command = (sys.executable, "-m", "controller.cli.main", "explain", "shop/batch", "--json")
    done = subprocess.run(
        (*command, "--data-dir", data_dir), check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    incidents = json.loads(done.stdout)["incidents"]
    squeeze = next(each for each in incidents if each["kind"] == "squeeze")
    assert (squeeze["channel"], squeeze["service"]) == ("cache", "shop/web@default"), squeeze
    assert "resctrl.l3" in {each["knob"] for each in squeeze["knobs"]}, squeeze


def release(node: Node) -> None:
    command = (
        sys.executable,
        "-m",
        "controller.cli.main",
        "release",
        "--state-dir",
        node.state_dir,
    )
    subprocess.run(command, check=True)
