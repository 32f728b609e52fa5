# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A real kubelet, containerd and runc on cgroup v2, and the agent beside them.

The agent has no probes, because compiling them takes 1.5 minutes in the guest: sched-idle is on
all the time, and the configuration says whether the safe state squeezes best-effort work.
"""

from collections.abc import Iterator
from pathlib import Path
import signal

import bcc
import pytest

from controller.demo.programs import DemoError
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, eventually
from tests.pod_server import PodServer
from tests.vm.guest.standalone import StandaloneNode, standalone_node

pytestmark = [pytest.mark.vm, pytest.mark.kube]

BLIND = f"mount -t tmpfs tmpfs {Path(bcc.__file__).resolve().parent}"
# Five seconds until the agent reads a knob, and the ten of its limit; the emulator is slow.
AGAIN_S = 120.0
START_S = 300.0
# kubelet's weight of 100m.
WEIGHT = 4


@pytest.fixture(scope="module")
def node(
    cgroup_layout: CgroupLayout,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[StandaloneNode]:
    home = tmp_path_factory.mktemp("node")
    with (
        PodServer(tmp_path_factory.mktemp("server")) as server,
        standalone_node(home, cgroup_layout, server) as node,
    ):
        yield node


def restart(node: StandaloneNode, agent: AgentRun, name: str, squeeze: bool) -> None:
    """Restart kubelet or containerd while the agent squeezes best-effort work, or releases it."""
    node.squeeze(squeeze)
    agent.process.send_signal(signal.SIGHUP)
    node.stop(name)
    if name == "kubelet":
        node.start_pods()
    else:
        node.start_containerd()
    eventually("the new quota", AGAIN_S, lambda: node.squeezed() is squeeze)


def has_weight(node: StandaloneNode) -> bool:
    return node.weight("burstable") == WEIGHT


def in_force(node: StandaloneNode) -> bool:
    return node.protected() and node.squeezed()


@pytest.mark.parametrize(
    ("kubelets", "containerds"), [(1, 1), pytest.param(10, 5, marks=pytest.mark.soak)]
)
def test_every_restart_beside_a_squeezing_agent(
    node: StandaloneNode, kubelets: int, containerds: int
) -> None:
    eventually("kubelet's weight", 90, lambda: has_weight(node))
    before, processes = node.knobs(), node.processes()
    # The emulator is too slow for the guardian, which expects a sign of life every ten seconds.
    with AgentRun(node, "--no-guardian", without=BLIND) as agent:
        eventually(
            "idle and a quota", START_S, lambda: in_force(node) or agent.process.poll() is not None
        )
        assert in_force(node), (agent.wait(), agent.output)
        for number in range(kubelets):
            restart(node, agent, "kubelet", squeeze=bool(number % 2))
        for _ in range(containerds):
            restart(node, agent, "containerd", squeeze=True)
        eventually("idle and a quota again", AGAIN_S, lambda: in_force(node))
        # kubelet updates its levels once a minute.
        eventually("kubelet's weight", 90, lambda: has_weight(node))
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop() == 0
    assert node.knobs() == before
    assert node.processes() == processes
    assert node.cgroup_errors() == []


def test_kubelet_does_not_start_while_its_level_is_idle(node: StandaloneNode) -> None:
    level = node.kubepods.qos_level("besteffort")
    node.stop("kubelet")
    offset = len(node.log("kubelet"))
    (level / "cpu.idle").write_text("1")
    try:
        node.start_kubelet()
        with pytest.raises(DemoError):
            node.wait("kubelet's end", lambda: False)
        words = node.log("kubelet")[offset:]
        assert "Failed to start ContainerManager" in words and "invalid argument" in words
        assert node.cgroup_errors()
    finally:
        (level / "cpu.idle").write_text("0")
        (level / "cpu.weight").write_text("1")
        node.stop("kubelet")
    node.start_pods()
