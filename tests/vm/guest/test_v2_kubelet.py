# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A real kubelet, containerd, runc and systemd on cgroup v2, and the agent beside them."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from controller.demo.cgroups import DemoError
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun
from tests.kube.standalone import (
    Kind,
    StandaloneNode,
    enforcing,
    in_boot,
    new_boot_id,
    standalone_home,
    standalone_node,
)
from tests.kube.systemd_host import SystemdHost
from tests.kube.test_reboot import check_reboot
from tests.support.kube.pod_server import PodServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.vm, pytest.mark.kube]


@pytest.fixture(scope="module")
def node(
    request: pytest.FixtureRequest,
    cgroup_layout: CgroupLayout,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[StandaloneNode]:
    with (
        PodServer(tmp_path_factory.mktemp("server")) as server,
        standalone_home(tmp_path_factory.mktemp("node")) as home,
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
    eventually("the new quota", lambda: node.squeezed() is squeeze)


def restarts(node: StandaloneNode, agent: AgentRun, kubelets: int, containerds: int) -> None:
    """Restart kubelet, each time until it has written its weight, then containerd."""
    for number in range(kubelets):
        start_s = time.monotonic()
        restart(node, agent, "kubelet", squeeze=bool(number % 2))
        squeezed_s = time.monotonic()
        node.wait_for_weight()
        spent = f"quota after {squeezed_s - start_s:.0f} s"
        print(f"kubelet {number}: {spent}, weight after {time.monotonic() - start_s:.0f} s")
    for number in range(containerds):
        start_s = time.monotonic()
        restart(node, agent, "containerd", squeeze=number % 2 == 0)
        print(f"containerd {number}: quota after {time.monotonic() - start_s:.0f} s")


@pytest.mark.soak
@pytest.mark.parametrize("node", ["systemd"], indirect=True)
def test_a_squeeze_beside_a_restart_of_kubelet_and_a_reload_of_systemd(
    node: StandaloneNode,
) -> None:
    assert isinstance(node.host, SystemdHost)
    node.wait_for_weight()
    before, processes = node.knobs(), node.processes()
    errors = node.cgroup_errors()  # a start on a busy machine may take systemd or runc too long
    with enforcing(node) as agent:
        assert node.knobs() != before
        node.stop("kubelet")
        node.start_pods()
        node.host.systemctl("daemon-reload")
        eventually("a routine of systemd", partial(was_overwritten, agent))
        node.wait_for_weight()
        eventually("idle and a quota again", node.in_force)
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop() == 0
    assert node.knobs() == before and not node.records()
    assert node.processes() == processes
    assert node.cgroup_errors() == errors
    assert not [line for line in systemd_log() if "Failed to set 'cpu." in line]


@pytest.mark.soak
@pytest.mark.parametrize("node", ["cgroupfs", "systemd"], indirect=True)
def test_every_restart_beside_a_squeezing_agent(node: StandaloneNode) -> None:
    node.wait_for_weight()
    before, processes, errors = node.knobs(), node.processes(), node.cgroup_errors()
    for end in (signal.SIGTERM, signal.SIGKILL):
        with enforcing(node) as agent:
            if isinstance(node.host, SystemdHost):
                node.host.systemctl("daemon-reload")
                eventually("a routine of systemd", partial(was_overwritten, agent))
            restarts(node, agent, 5, 3)
            eventually("idle and a quota again", node.in_force)
            assert agent.status()["tick"]["failed"] == 0
            assert abs(agent.stop(end)) == (0 if end == signal.SIGTERM else end)
        if end == signal.SIGKILL:
            check_other_boot(node)
            assert node.in_force()
            release(node.state_dir)
        assert node.knobs() == before and not node.records()
        assert node.processes() == processes
    assert node.cgroup_errors() == errors
    assert not [line for line in systemd_log() if "Failed to set 'cpu." in line]


def write_in(cgroup: Path) -> None:
    """Make a cgroup idle and give it a quota, without the agent."""
    (cgroup / "cpu.idle").write_text("1")
    (cgroup / "cpu.max").write_text("5000 100000")


def release(state_dir: Path, boot_id: Path | None = None) -> None:
    """Execute ``sweetpoint release``, in the boot whose id is in *boot_id*."""
    other = f"{in_boot(boot_id)}; " if boot_id else ""
    command = (sys.executable, "-m", "controller.cli.main", "release", "--state-dir")
    words = ("unshare", "-m", "sh", "-ec", other + 'exec "$@"', "-", *command, str(state_dir))
    subprocess.run(words, check=True)


def check_other_boot(node: StandaloneNode) -> None:
    """Check that a journal of another boot, whose cgroups were others, is dropped."""
    other, boot_id = node.host.home / "other", new_boot_id(node.host.home)
    shutil.copytree(node.state_dir, other)
    held = node.knobs()
    assert node.records()
    release(other, boot_id)
    assert node.knobs() == held and not list((other / "journal").iterdir())


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


# The units alone, because kubelet and containerd take the emulator six minutes more.
@pytest.mark.parametrize("node", ["units"], indirect=True)
def test_a_reload_of_systemd_and_a_kill(node: StandaloneNode) -> None:
    assert isinstance(node.host, SystemdHost)
    before, processes = node.knobs(), node.processes()
    # Without the agent: a value that systemd does not know is lost with a reload.
    write_in(node.cgroups["batch"])
    assert node.in_force()
    node.host.systemctl("daemon-reload")
    eventually("kubelet's values", lambda: not node.in_force())
    assert node.knobs() == before
    with enforcing(node) as agent:
        node.host.systemctl("daemon-reload")
        eventually("a routine of systemd", lambda: was_overwritten(agent))
        eventually("idle and a quota after a reload", node.in_force)
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop(signal.SIGKILL) == -signal.SIGKILL
    assert "kubelet or systemd puts cpu.idle" in agent.output
    assert node.in_force()
    release(node.state_dir)
    assert node.knobs() == before and not node.records()
    assert node.processes() == processes
    assert any("Reloading" in line for line in systemd_log())
    assert not [line for line in systemd_log() if "Failed to set 'cpu." in line]


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["cgroupfs", "systemd"])
def test_a_reboot_of_the_node(
    kind: Kind, cgroup_layout: CgroupLayout, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with standalone_home(tmp_path_factory.mktemp("node")) as home:
        check_reboot(home, kind, cgroup_layout)


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
