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

from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.host.own_cgroup import (
    OWN_CGROUP,
    OwnWeight,
    enter_own_cgroup,
    is_shared,
    leave_own_cgroup,
    raise_weight,
    remove_own_cgroup,
)
from tests.kernel.agent import AgentRun, Site
from tests.kernel.knobs import set_weight
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]


def cgroup_of(pid: int | str, layout: CgroupLayout) -> str:
    """Return the path of *pid* in the cpu hierarchy."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if ("cpu" if layout.version == "v1" else "") in controllers.split(","):
            return path
    raise AssertionError(f"{pid} is in no cgroup of the cpu hierarchy")


@pytest.fixture(autouse=True)
def own(cgroup_layout: CgroupLayout) -> Iterator[Path]:
    """The directory of the cgroup, which has to be gone after the test."""
    if not is_shared(cgroup_of("self", cgroup_layout)):
        pytest.skip("the tests were not started from a shell")
    remove_own_cgroup()  # of an agent that another test killed
    path = cgroup_layout.mount / OWN_CGROUP
    yield path
    eventually("its removal", lambda: is_gone_or_used(path))


def is_gone_or_used(own: Path) -> bool:
    """Whether the cgroup was removed, or another agent of this host is in it.

    An agent that starts makes it before it enters, and one that is killed leaves it for a while.
    """
    try:
        return bool((own / "cgroup.procs").read_text())
    except OSError:
        return True


def weight_of(own: Path) -> float:
    """Return the weight of the cgroup, as a multiple of the usual one."""
    if (own / "cpu.shares").exists():
        return int((own / "cpu.shares").read_text()) / 1024
    return int((own / "cpu.weight").read_text()) / 100


def test_a_start_from_a_shell_gets_a_cgroup_priority_and_short_slices(site: Site) -> None:
    with AgentRun(site) as agent:
        for pid in agent.ready().pids():
            assert cgroup_of(pid, site.layout) == f"/{OWN_CGROUP}"
            assert os.getpriority(os.PRIO_PROCESS, pid) == -10
        pid = agent.pids()[1]
        autogroup = Path(f"/proc/{pid}/autogroup")
        if autogroup.exists():
            assert autogroup.read_text().endswith("nice -10\n")
            assert not Path("/proc/self/autogroup").read_text().endswith("nice -10\n")
        # struct sched_attr: runtime at byte 24; a kernel before 6.12 has none for fair tasks.
        attributes = ctypes.create_string_buffer(56)
        call = {"x86_64": 315, "aarch64": 275}[os.uname().machine]
        assert ctypes.CDLL(None).syscall(call, pid, attributes, ctypes.c_uint(56), 0) == 0
        assert struct.unpack_from("=Q", attributes.raw, 24)[0] in (0, 100_000)
        assert agent.stop() == 0


def test_the_weight_is_high_for_half_a_minute_after_a_late_tick(own: Path) -> None:
    def follows_ticks() -> bool:
        assert enter_own_cgroup([os.getpid()])
        try:
            first = weight_of(own)
            weight, found = OwnWeight(), []
            for now_s, late_ms in ((0.0, 0), (1.0, 49), (2.0, 50), (31.9, 0), (32.1, 0)):
                weight.update(round(now_s * NS_PER_SEC), late_ms * 1_000_000)
                found.append(weight_of(own))
            raise_weight()  # as the guardian of an agent without a tick
            found.append(weight_of(own))
            for late_ms in (60, 60):
                set_weight(own, 6)  # by another agent
                weight.update(40 * NS_PER_SEC, late_ms * 1_000_000)
                found.append(weight_of(own))
        finally:
            leave_own_cgroup()
        low = found[0]
        return first == 10 and low < 0.1 and found == [low, low, 10, 10, low, 10, 10, 10]

    # Other agents of this host are in the same cgroup, and write its weight, too.
    eventually("a series of this process alone", follows_ticks)


@pytest.mark.timed
def test_an_agent_that_was_stopped_goes_on_with_a_high_weight(site: Site, own: Path) -> None:
    """Its weight is low while its ticks begin in time; a stop is the shortest way to a late one."""
    with AgentRun(site) as agent:
        pids = agent.ready().pids()
        eventually("a low weight", lambda: weight_of(own) < 0.1)
        os.kill(pids[1], signal.SIGSTOP)
        time.sleep(1.5)  # longer than the period of a calm node
        os.kill(pids[1], signal.SIGCONT)
        eventually("a high weight", lambda: weight_of(own) == 10)
        assert agent.pids() == pids
        assert agent.stop() == 0


def test_a_cgroup_from_elsewhere_is_kept(site: Site) -> None:
    move = f"echo $$ > {site.bystander}/cgroup.procs"
    with AgentRun(site, without=move) as agent:
        for pid in agent.ready().pids():
            assert cgroup_of(pid, site.layout) == site.path(site.bystander)
        assert agent.stop() == 0


def test_a_cgroup_namespace_is_not_left(site: Site) -> None:
    with AgentRun(site, without='exec unshare --cgroup "$@"') as agent:
        for pid in agent.ready().pids():
            assert cgroup_of(pid, site.layout) == cgroup_of("self", site.layout)
        assert agent.stop() == 0


def test_a_refused_second_agent_leaves_the_cgroup_to_the_first(site: Site) -> None:
    with AgentRun(site) as agent:
        agent.ready()
        with AgentRun(site) as second:
            assert second.wait() != 0
        assert {cgroup_of(pid, site.layout) for pid in agent.pids()} == {f"/{OWN_CGROUP}"}
        assert agent.stop() == 0


def kill_inside(site: Site) -> None:
    """Kill an agent that is in the cgroup, which it leaves behind."""
    with AgentRun(site) as agent:
        for pid in agent.ready().pids():
            assert cgroup_of(pid, site.layout) == f"/{OWN_CGROUP}"
        agent.kill_both()


def test_a_killed_agent_s_cgroup_is_used_and_removed_by_the_next(site: Site) -> None:
    kill_inside(site)
    with AgentRun(site) as agent:
        for pid in agent.ready().pids():
            assert cgroup_of(pid, site.layout) == f"/{OWN_CGROUP}"
        assert agent.stop() == 0


def test_a_killed_agent_s_cgroup_is_removed_by_release(site: Site, own: Path) -> None:
    kill_inside(site)
    state = str(site.home / "state")
    command = [sys.executable, "-m", "controller.cli.main", "release", "--state-dir", state]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE_S)
    # Unless another agent of this host was in it, which may have removed it since.
    told = f"removed   cgroup {OWN_CGROUP}" in done.stdout
    eventually("its removal", lambda: told or is_gone_or_used(own))
