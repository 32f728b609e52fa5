# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's own cgroup: made by a start from a shell and by no other, and removed again."""

from collections.abc import Iterator
import ctypes
import os
from pathlib import Path
import signal
import struct
import subprocess
import sys
import time

import pytest

from controller.host.facts import CgroupLayout
from controller.host.own_cgroup import OWN_CGROUP, is_shared, remove_own_cgroup
from tests.kernel.agent import AgentRun, Site
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel


def cgroup_of(pid: int | str, layout: CgroupLayout) -> str:
    """Return the path of *pid* in the cpu hierarchy."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if ("cpu" if layout.version == "v1" else "") in controllers.split(","):
            return path
    raise AssertionError(f"{pid} is in no cgroup of the cpu hierarchy")


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Site:
    if not is_shared(cgroup_of("self", cgroup_layout)):
        pytest.skip("the tests were not started from a shell")
    remove_own_cgroup()  # of an agent that another test killed
    return Site(cgroup_root, cgroup_layout, tmp_path)


@pytest.fixture
def own(cgroup_layout: CgroupLayout) -> Iterator[Path]:
    """The directory of the cgroup, which has to be gone after the test."""
    path = cgroup_layout.mount / OWN_CGROUP
    yield path
    assert not path.exists()


def kill_both(agent: AgentRun) -> None:
    for pid in agent.pids():
        os.kill(pid, signal.SIGKILL)
    agent.wait()


def test_a_start_from_a_shell_gets_a_cgroup_and_priority(site: Site, own: Path) -> None:
    with AgentRun(site) as agent:
        for pid in agent.ready().pids():
            assert cgroup_of(pid, site.layout) == f"/{OWN_CGROUP}"
            assert os.getpriority(os.PRIO_PROCESS, pid) == -10
        autogroup = Path(f"/proc/{agent.pids()[1]}/autogroup")
        if autogroup.exists():
            assert autogroup.read_text().endswith("nice -10\n")
            assert not Path("/proc/self/autogroup").read_text().endswith("nice -10\n")
        assert agent.stop() == 0


def test_an_agent_that_was_stopped_goes_on_with_a_high_weight(site: Site, own: Path) -> None:
    """Its weight is low while its ticks begin in time; a stop is the shortest way to a late one."""
    file, usual = ("cpu.shares", 1024) if site.layout.version == "v1" else ("cpu.weight", 100)

    def weight() -> float:
        return int((own / file).read_text()) / usual

    with AgentRun(site) as agent:
        pids = agent.ready().pids()
        eventually("a low weight", lambda: weight() < 0.1)
        os.kill(pids[1], signal.SIGSTOP)
        time.sleep(1.5)  # longer than the period of a calm node
        os.kill(pids[1], signal.SIGCONT)
        eventually("a high weight", lambda: weight() == 10)
        assert agent.pids() == pids
        assert agent.stop() == 0


def test_the_agent_has_short_slices(site: Site, own: Path) -> None:
    with AgentRun(site) as agent:
        pid = agent.ready().pids()[1]
        # struct sched_attr: runtime at byte 24; a kernel before 6.12 has none for fair tasks.
        attributes = ctypes.create_string_buffer(56)
        call = {"x86_64": 315, "aarch64": 275}[os.uname().machine]
        assert ctypes.CDLL(None).syscall(call, pid, attributes, ctypes.c_uint(56), 0) == 0
        assert struct.unpack_from("=Q", attributes.raw, 24)[0] in (0, 100_000)
        assert agent.stop() == 0


def test_a_cgroup_from_elsewhere_is_kept(site: Site, own: Path) -> None:
    move = f"echo $$ > {site.bystander}/cgroup.procs"
    with AgentRun(site, without=move) as agent:
        for pid in agent.ready().pids():
            assert cgroup_of(pid, site.layout) == site.path(site.bystander)
        assert not own.exists()
        assert agent.stop() == 0


def test_a_cgroup_namespace_is_not_left(site: Site, own: Path) -> None:
    with AgentRun(site, without='exec unshare --cgroup "$@"') as agent:
        agent.ready()
        assert not own.exists()
        assert agent.stop() == 0


def test_a_refused_second_agent_leaves_the_cgroup_to_the_first(site: Site, own: Path) -> None:
    with AgentRun(site) as agent:
        agent.ready()
        with AgentRun(site) as second:
            assert second.wait() != 0
        assert {cgroup_of(pid, site.layout) for pid in agent.pids()} == {f"/{OWN_CGROUP}"}
        assert agent.stop() == 0


def test_a_killed_agent_s_cgroup_is_used_and_removed_by_the_next(site: Site, own: Path) -> None:
    with AgentRun(site) as agent:
        kill_both(agent.ready())
    assert own.exists()
    with AgentRun(site) as agent:
        for pid in agent.ready().pids():
            assert cgroup_of(pid, site.layout) == f"/{OWN_CGROUP}"
        assert agent.stop() == 0


def test_a_killed_agent_s_cgroup_is_removed_by_release(site: Site, own: Path) -> None:
    with AgentRun(site) as agent:
        kill_both(agent.ready())
    assert own.exists()
    state = str(site.home / "state")
    command = [sys.executable, "-m", "controller.cli.main", "release", "--state-dir", state]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert f"removed   cgroup {OWN_CGROUP}" in done.stdout
