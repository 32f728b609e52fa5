# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A real kubelet, containerd, runc and systemd on cgroup v2, and the agent beside them.

The agent has no probes, because compiling them takes 1.5 minutes in the guest: sched-idle is on
all the time, and the configuration says whether the safe state squeezes best-effort work.
"""

from collections.abc import Iterator
import contextlib
from pathlib import Path
import re
import shutil
import signal
import subprocess
import sys

import bcc
import pytest

from controller.demo.programs import DemoError
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, eventually
from tests.kube.standalone import StandaloneNode, standalone_node
from tests.kube.systemd_host import SystemdHost
from tests.pod_server import PodServer

pytestmark = [pytest.mark.vm, pytest.mark.kube]

BLIND = f"mount -t tmpfs tmpfs {Path(bcc.__file__).resolve().parent}"
# Five seconds until the agent reads a knob, and the ten of its limit; the emulator is slow.
AGAIN_S = 120.0
START_S = 300.0
# kubelet's weight of 100m.
WEIGHT = 4


@pytest.fixture(scope="module")
def node(
    request: pytest.FixtureRequest,
    cgroup_layout: CgroupLayout,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[StandaloneNode]:
    home = tmp_path_factory.mktemp("node")
    with (
        PodServer(tmp_path_factory.mktemp("server")) as server,
        standalone_node(home, request.param, cgroup_layout, server) as node,
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


@contextlib.contextmanager
def enforcing(node: StandaloneNode) -> Iterator[AgentRun]:
    """Run the agent; its values are in force when the context begins."""
    # The emulator is too slow for the guardian, which expects a sign of life every ten seconds.
    with AgentRun(node, "--no-guardian", without=BLIND) as agent:
        eventually(
            "idle and a quota", START_S, lambda: in_force(node) or agent.process.poll() is not None
        )
        assert in_force(node), (agent.wait(), agent.output)
        yield agent


@pytest.mark.parametrize(
    ("node", "kubelets", "containerds"),
    [
        ("cgroupfs", 1, 1),
        pytest.param("cgroupfs", 10, 5, marks=pytest.mark.soak),
    ],
    indirect=["node"],
)
def test_every_restart_beside_a_squeezing_agent(
    node: StandaloneNode, kubelets: int, containerds: int
) -> None:
    eventually("kubelet's weight", 90, lambda: has_weight(node))
    before, processes = node.knobs(), node.processes()
    with enforcing(node) as agent:
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


def write_in(cgroup: Path) -> None:
    """Make a cgroup idle and give it a quota, without the agent."""
    (cgroup / "cpu.idle").write_text("1")
    (cgroup / "cpu.max").write_text("5000 100000")


def release(state_dir: Path, boot_id: Path | None = None) -> None:
    """Execute ``sweetpoint release``, in the boot whose id is in *boot_id*."""
    other = f"mount --bind {boot_id} /proc/sys/kernel/random/boot_id; " if boot_id else ""
    command = (sys.executable, "-m", "controller.cli.main", "release", "--state-dir")
    words = ("unshare", "-m", "sh", "-ec", other + 'exec "$@"', "-", *command, str(state_dir))
    subprocess.run(words, check=True)


def records(state_dir: Path) -> list[Path]:
    return list((state_dir / "journal").glob("*.json"))


def check_other_boot(node: StandaloneNode) -> None:
    """Check that a journal of another boot, whose cgroups were others, is dropped."""
    other, boot_id = node.host.home / "other", node.host.home / "boot_id"
    shutil.copytree(node.state_dir, other)
    boot_id.write_text("11111111-1111-4111-8111-111111111111\n")
    held = node.knobs()
    assert records(other)
    release(other, boot_id)
    assert node.knobs() == held and not records(other)


def was_overwritten(agent: AgentRun) -> bool:
    """Whether the agent found kubelet's value in place of its cpu.idle, and none of others."""
    text = agent.get("/metrics") or ""
    names = [f"sweetpoint_knob_{kind}overwrites_total" for kind in ("routine_", "")]
    found = [re.search(rf'^{name}{{knob="cpu.idle"}} (\S+)$', text, re.M) for name in names]
    routine, foreign = (float(each[1]) if each else 0.0 for each in found)
    assert not foreign
    return routine > 0


def systemd_log() -> list[str]:
    log = subprocess.run(["dmesg"], capture_output=True, check=True, text=True).stdout
    return [line for line in log.splitlines() if "systemd[1]" in line]


@pytest.mark.parametrize(
    ("node", "kubelets"),
    [("units", 0), pytest.param("systemd", 1, marks=pytest.mark.soak)],
    indirect=["node"],
)
def test_a_reload_of_systemd_and_a_kill(node: StandaloneNode, kubelets: int) -> None:
    assert isinstance(node.host, SystemdHost)
    eventually("kubelet's weight", 90, lambda: has_weight(node))
    before, processes = node.knobs(), node.processes()
    # Without the agent: a value that systemd does not know is lost with a reload.
    write_in(node.cgroups["batch"])
    assert in_force(node)
    node.host.systemctl("daemon-reload")
    eventually("kubelet's values", 30, lambda: not in_force(node))
    assert node.knobs() == before
    with enforcing(node) as agent:
        node.host.systemctl("daemon-reload")
        eventually("a routine of systemd", AGAIN_S, lambda: was_overwritten(agent))
        eventually("idle and a quota after a reload", AGAIN_S, lambda: in_force(node))
        for _ in range(kubelets):
            restart(node, agent, "kubelet", squeeze=True)
        assert in_force(node)
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop(signal.SIGKILL) == -signal.SIGKILL
    assert "kubelet or systemd puts cpu.idle" in agent.output
    assert in_force(node)
    if kubelets:  # each start of Python takes half a minute
        check_other_boot(node)
    release(node.state_dir)
    assert node.knobs() == before and not records(node.state_dir)
    assert node.processes() == processes
    assert node.cgroup_errors() == []
    assert any("Reloading" in line for line in systemd_log())
    assert not [line for line in systemd_log() if "Failed to set 'cpu." in line]


@pytest.mark.soak
@pytest.mark.parametrize("node", ["cgroupfs"], indirect=True)
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
