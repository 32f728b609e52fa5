# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How late ticks start beside hostile neighbours, compared with a bare loop in the same cgroup.

The agent observes only, so nothing holds the neighbour back; both cgroups have the usual weight.
"""

from collections.abc import Callable, Iterator
import contextlib
import os
from pathlib import Path
import time

import pytest

from controller.host.facts import CgroupLayout, mounts
from tests.bench.neighbours import started
from tests.kernel.agent import AgentRun, Site
from tests.kernel.overload import outweigh
from tests.support.cgroups import remove_cgroup

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

TICK_MS = 100
SECONDS = 60  # the agent keeps the lateness of 600 ticks
MEMORY_BYTES = 1 << 30
GOAL_NS = 50_000_000

Arguments = Callable[[Site], list[str]]


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Iterator[Site]:
    site = Site(cgroup_root, cgroup_layout, tmp_path)
    site.write(f"tick: {TICK_MS}ms\n", mode="observe")
    outweigh(site.root)  # what else runs on this machine must not count
    (site.root / "agent").mkdir()
    yield site


@contextlib.contextmanager
def bounded_memory(site: Site) -> Iterator[list[Path]]:
    """Limit the neighbour's memory; yield the cgroups that it has to join."""
    cgroup = site.batch[0]
    if site.layout.version == "v2":
        for parent in (site.root, cgroup.parent):
            (parent / "cgroup.subtree_control").write_text("+memory")
        (cgroup / "memory.max").write_text(str(MEMORY_BYTES))
        yield [cgroup]
        return
    (mount,) = [m.point for m in mounts(None, {"cgroup"}) if "memory" in m.options]
    bound = mount / site.root.name
    bound.mkdir()
    try:
        (bound / "memory.limit_in_bytes").write_text(str(MEMORY_BYTES))
        yield [cgroup, bound]
    finally:
        remove_cgroup(bound)


def p99(values: list[int]) -> int:
    return sorted(values)[int(0.99 * (len(values) - 1))]


NEIGHBOURS: dict[str, Arguments] = {
    "forks": lambda _: [str(4 * (os.cpu_count() or 1))],
    "threads": lambda _: ["20000"],
    "cgroups": lambda site: [str(site.root / "batch"), "5000"],
    "pages": lambda site: [str(site.home / "pages"), "2048"],
}


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_lateness_beside(neighbour: str, site: Site, program: Path) -> None:
    own = site.root / "agent"
    bare = [*("nice", "-n", "-10", str(program), "bare", str(SECONDS), str(TICK_MS))]
    hostile = [str(program), neighbour, str(2 * SECONDS), *NEIGHBOURS[neighbour](site)]
    fills_memory = neighbour == "pages"
    with (
        bounded_memory(site) if fills_memory else contextlib.nullcontext(site.batch[:1]) as cgroups,
        AgentRun(site, without=f"echo $$ > {own}/cgroup.procs") as agent,
    ):
        agent.ready()
        with started(hostile, cgroups) as load:
            assert load.stdout is not None and load.stdout.readline() == "ready\n"
            with started(bare, [own]) as loop:
                assert loop.stdout is not None
                late_ns = [int(line) for line in loop.stdout]
            time.sleep(1)  # all 600 ticks were beside the load
            tick = agent.status()["tick"]
            assert load.poll() is None
        assert agent.stop() == 0
    bare_ns, agent_ns = p99(late_ns), tick["late_p99_ns"]
    print(
        f"\n{neighbour}: p99 of lateness: tick {agent_ns / 1e6:.1f} ms, bare loop "
        f"{bare_ns / 1e6:.1f} ms; medians {tick['late_median_ns'] / 1e6:.1f} and "
        f"{sorted(late_ns)[len(late_ns) // 2] / 1e6:.1f} ms; {tick['overruns']} overruns, ticks of "
        f"{tick['duration_median_ns'] / 1e6:.1f} ms, p99 {tick['duration_p99_ns'] / 1e6:.1f} ms"
    )
    assert tick["failed"] == 0
    assert agent_ns <= bare_ns + GOAL_NS
