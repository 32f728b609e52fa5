# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Two hundred cgroups per second are made and removed for a minute: no leak, correct accounting."""

from collections import deque
from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import subprocess
import sys
import time

import pytest

from controller.agent.self_budget import pss_bytes
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.steal import Steal
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.soak, pytest.mark.timed]

PER_SECOND = 200
SECONDS = 60
ALIVE = 60

# Forks a child into each cgroup whose path it reads; the child works for 2 ms of CPU time.
_FACTORY = """
import os, sys, time
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        with open(line.strip() + "/cgroup.procs", "w") as procs:
            procs.write(str(os.getpid()))
        while time.process_time() < 0.002:
            pass
        os._exit(0)
    os.waitpid(pid, 0)
    print("done", flush=True)
"""


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Iterator[Site]:
    yield Site(cgroup_root, cgroup_layout, tmp_path)


def churn(batch: Path, seconds: float) -> int:
    """Make and remove cgroups in *batch*, each with a process; return how many were made."""
    made = 0
    alive: deque[Path] = deque()
    with subprocess.Popen(
        [sys.executable, "-S", "-c", _FACTORY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as factory:
        assert factory.stdin is not None and factory.stdout is not None
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            path = batch / f"job{made}"
            path.mkdir()
            factory.stdin.write(f"{path}\n")
            factory.stdin.flush()
            assert factory.stdout.readline() == "done\n"
            alive.append(path)
            made += 1
            if len(alive) > ALIVE:
                remove(alive.popleft())
            time.sleep(max(0.0, began + made / PER_SECOND - time.monotonic()))
        factory.stdin.close()
    for path in alive:
        remove(path)
    return made


def remove(path: Path) -> None:
    """Remove a cgroup whose process has just ended."""
    with contextlib.suppress(OSError):
        path.rmdir()
        return
    eventually(f"{path} is empty", lambda: not (path / "cgroup.procs").read_text())
    path.rmdir()


def counted_s(agent: AgentRun, workload: str) -> float:
    """Return the on-CPU seconds of *workload* according to the agent."""
    name = f'sweetpoint_workload_oncpu_seconds_total{{workload="{workload}"}} '
    (line,) = (ln for ln in (agent.get("/metrics") or "").splitlines() if ln.startswith(name))
    return float(line.removeprefix(name))


def test_churn_leaks_nothing_and_is_not_charged_to_the_service(site: Site) -> None:
    batch = site.root / "batch"
    with loads([Load(site.service, "bursts")]) as running, AgentRun(site) as agent:
        agent.ready()
        _, pid = agent.pids()
        running.start()
        churn(batch, 5)  # one-time allocations happen before the first measurement
        time.sleep(4)
        fds, memory = len(os.listdir(f"/proc/{pid}/fd")), pss_bytes(pid)
        before_s, before = counted_s(agent, "web"), running.schedstat(site.service)
        steal = Steal()
        made = churn(batch, SECONDS)
        after_s, after = counted_s(agent, "web"), running.schedstat(site.service)
        eventually("the removal of all", lambda: len(agent.status()["workloads"]) == 3)
        time.sleep(4)
        state = agent.status()
        assert agent.pids()[1] == pid
        grown = (pss_bytes(pid) or 0) - (memory or 0)
        print(
            f"\n{made} cgroups in {SECONDS} s; tick median "
            f"{state['tick']['duration_median_ns'] / 1e6:.2f} ms, "
            f"{state['tick']['failed']} failed ticks; memory {grown / 2**20:+.1f} MiB"
        )
        assert len(os.listdir(f"/proc/{pid}/fd")) == fds
        assert agent.stop() == 0
    assert made > 0.7 * PER_SECOND * SECONDS
    assert state["tick"]["failed"] == 0
    assert grown < 8 * 2**20
    # Slots are reused all the time: the service is charged for its own work only.
    counted_ns = round((after_s - before_s) * 1e9)
    steal.assert_equal(counted_ns, after.oncpu_ns - before.oncpu_ns, rel=0.02, spare_ns=50_000_000)
