# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A restart of the agent: its CPU time, and the time until it is ready on an overloaded machine.

As installed: with the compiled bytecode and the compiled programs that an earlier start left.
"""

from collections.abc import Callable, Iterator
import contextlib
import os
from pathlib import Path
import statistics
import time

import pytest

from controller.host.facts import CgroupLayout
from controller.host.own_cgroup import is_shared
from tests.kernel.agent import AgentRun, Site
from tests.kernel.footprint import footprint
from tests.kernel.loads import Load, loads
from tests.kernel.overload import outweigh
from tests.kernel.test_own_cgroup import cgroup_of

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

ROUNDS = 5
HOGS = 8
BUSY_CGROUPS = 20


@pytest.fixture
def site(
    cgroup_root: Path,
    cgroup_layout: CgroupLayout,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Site]:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "bytecode"))
    site = Site(cgroup_root, cgroup_layout, tmp_path)
    with AgentRun(site) as agent:
        agent.ready()
    yield site


def start_cpu_s(agent: AgentRun) -> float:
    """Return the CPU time of guardian and agent, with that of their children that ended."""
    total = 0
    for pid in agent.pids():
        # proc_pid_stat(5): fields 14 to 17, counted after the name, which may hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def test_cpu_time_and_memory_of_a_restart(site: Site) -> None:
    used, memory = [], []
    for _ in range(ROUNDS):
        with AgentRun(site) as agent:
            used.append(start_cpu_s(agent.ready()))
            memory.append(footprint(agent).pss_bytes / 2**20)
    print(
        f"\nrestart: {statistics.median(used):.2f} s of CPU ({min(used):.2f} to {max(used):.2f}), "
        f"{statistics.median(memory):.1f} MiB of PSS"
    )
    # 0.6 s, and 40 % for the difference between two runs of the same work on a shared machine.
    assert statistics.median(used) <= 0.85


def from_a_shell(site: Site) -> str:
    if not is_shared(cgroup_of("self", site.layout)):
        pytest.skip("the tests were not started from a shell")
    return ""


def from_a_cgroup_of_the_usual_weight(site: Site) -> str:
    own = site.root / "agent"
    own.mkdir(exist_ok=True)
    outweigh(site.root)  # what else runs on this machine must not count
    return f"echo $$ > {own}/cgroup.procs"


@pytest.mark.parametrize(
    ("start", "cgroups", "hogs", "goal_s"),
    [
        (from_a_shell, 1, HOGS, 5),
        (from_a_cgroup_of_the_usual_weight, 1, HOGS, 5),
        (from_a_cgroup_of_the_usual_weight, BUSY_CGROUPS, BUSY_CGROUPS, 10),
    ],
)
def test_time_until_ready_beside_hogs(
    start: Callable[[Site], str], cgroups: int, hogs: int, goal_s: float, site: Site
) -> None:
    without = start(site)
    busy = [site.root / f"busy{number}" for number in range(cgroups)]
    for path in busy:
        path.mkdir()
    wanted = [Load(busy[number % cgroups], "hog") for number in range(hogs)]
    taken = []
    for _ in range(ROUNDS):
        with loads(wanted, seconds=120) as running, contextlib.ExitStack() as stack:
            running.start()
            began = time.monotonic()
            stack.enter_context(AgentRun(site, without=without)).ready()
            taken.append(time.monotonic() - began)
    median = statistics.median(taken)
    what = start.__name__.replace("_", " ")
    print(
        f"\n{what} beside {hogs} hogs in {cgroups} cgroups: ready after {median:.1f} s "
        f"({min(taken):.1f} to {max(taken):.1f})"
    )
    assert median <= goal_s
