# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What looks save, and what one costs: rounds with and without looks take turns in one agent.

``SWEETPOINT_LOOKS_SECONDS`` is the length of a round, 20 by default, ``SWEETPOINT_LOOKS_ROUNDS``
how many pairs of rounds there are, 5 by default.
"""

from collections.abc import Iterator, Sequence
import contextlib
from dataclasses import replace
import os
from pathlib import Path
import signal
import statistics
import subprocess
import sys
import time

import pytest

from controller.agent.config_source import ConfigSource
from controller.agent.looks import Looks
from controller.agent.node import Node
from controller.agent.pauses import Pauses
from controller.agent.reload import ConfigFollower
from controller.core.looks import LimitTable
from controller.core.planner import Planner
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import WorkloadIndex
from controller.host.store import Store
from controller.telemetry.report import PublishedState
from tests.bench.crowd import BEARS, crowd
from tests.kernel.agent import AgentRun, Site

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

SECONDS = int(os.environ.get("SWEETPOINT_LOOKS_SECONDS", "20"))
ROUNDS = int(os.environ.get("SWEETPOINT_LOOKS_ROUNDS", "5"))
SETTLE_S = 5
LOOKS = 30
_WAKE = "import sys, time\npause_s = float(sys.argv[1])\nwhile True: time.sleep(pause_s)"


@contextlib.contextmanager
def waking(cgroups: Sequence[tuple[Path, float]]) -> Iterator[None]:
    """Run a task in each cgroup that wakes every so many seconds."""
    tasks = []
    try:
        for cgroup, pause_s in cgroups:
            command = [sys.executable, "-ISc", _WAKE, str(pause_s)]
            tasks.append(subprocess.Popen(command))
            (cgroup / "cgroup.procs").write_text(str(tasks[-1].pid))
        yield
    finally:
        for task in tasks:
            task.kill()
        for task in tasks:
            task.wait()


@pytest.mark.parametrize(("workloads", "load"), [(200, "asleep"), (200, "well"), (1000, "asleep")])
def test_cpu_of_the_agent(workloads: int, load: str, site: Site) -> None:
    services, jobs = crowd(site, workloads // 10, workloads - workloads // 10)
    pauses = [(each, 1000.0) for each in (*services, *jobs)]
    if load == "well":
        pauses = [(each, 0.002) for each in services[:5]] + [(each, 0.05) for each in jobs[:50]]
    (site.home / "bears.yaml").write_text(BEARS)
    text = f"{site.config.read_text()}profiles: [bears.yaml]\n"
    percent: dict[bool, list[float]] = {True: [], False: []}
    ticks: dict[bool, list[float]] = {True: [], False: []}
    with waking(pauses), AgentRun(site) as agent:
        pid = agent.ready().pids()[1]
        for number in range(2 * ROUNDS):
            looks = number % 2 == 0
            site.config.write_text(f"{text}looks: {str(looks).lower()}\n")
            os.kill(pid, signal.SIGHUP)
            time.sleep(SETTLE_S)
            made = agent.ticks()
            time.sleep(1)  # a request for a page is no part of the round
            before, began_s = _oncpu_s(pid), time.monotonic()
            time.sleep(SECONDS)
            after, took_s = _oncpu_s(pid), time.monotonic() - began_s
            percent[looks].append(100 * (after - before) / took_s)
            ticks[looks].append((agent.ticks() - made) / took_s)
        tick = agent.status()["tick"]
        assert agent.stop() == 0
    for looks, found in percent.items():
        print(
            f"\n{workloads} {load}, {'with' if looks else 'without'} looks: "
            f"{statistics.median(found):.2f} % of a CPU ({min(found):.2f} to {max(found):.2f}), "
            f"{statistics.median(ticks[looks]):.2f} ticks per second"
        )
    print(tick["looks"])
    assert statistics.median(percent[True]) < statistics.median(percent[False])


@pytest.mark.parametrize("workloads", [200, 1000])
def test_cpu_of_a_look(workloads: int, site: Site) -> None:
    """Services wake every 2 ms, so that a look has something to compare."""
    services, _ = crowd(site, workloads // 10, workloads - workloads // 10)
    source = ConfigSource(site.config, None)
    loaded = source.load()
    published = PublishedState()
    with waking([(each, 0.002) for each in services[:5]]), contextlib.ExitStack() as stack:
        node = Node(loaded, Store(loaded.data_dir))
        stack.callback(node.close)
        follower = ConfigFollower(source, loaded, node)
        pauses = Pauses(loaded.state_dir)
        looks = Looks(node, follower, pauses, published, None)
        settings = follower.config.settings
        planner, table = Planner(settings, node.workloads), LimitTable()
        index = WorkloadIndex(node.workloads, settings.profiles)
        took: dict[str, list[int]] = {"look": [], "tick": []}
        for number in range(10 * LOOKS):
            time.sleep(0.05)
            began_ns = time.thread_time_ns()
            if number % 10 == 0:
                follower.poll(time.monotonic_ns())
                looks.begin_tick()
                snapshot = node.poll(pauses.poll(), looks.left_out_ns)
                plan = planner.step(snapshot, ())
                planner.quiet(plan, planner.settle(()))
                took["tick"].append(time.thread_time_ns() - began_ns)
                quiet = table.update(index, plan.loops)
                looks.end_tick(snapshot, replace(quiet, longest_ns=NS_PER_SEC))
            else:
                looks.reason(time.monotonic_ns(), 200_000_000)
                took["look"].append(time.thread_time_ns() - began_ns)
    for what, found in took.items():
        print(f"\n{workloads} workloads, {what}: {statistics.median(found) / 1e3:.0f} us")


def _oncpu_s(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
