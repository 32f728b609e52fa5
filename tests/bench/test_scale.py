# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Tick time and memory of the whole agent by number of workloads."""

import os
import time

import pytest

from controller.agent.self_budget import pss_bytes
from tests.bench.crowd import crowd
from tests.kernel.agent import AgentRun, Site
from tests.kernel.footprint import footprint
from tests.kernel.loads import Load, loads

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

SECONDS = 20


@pytest.mark.parametrize(
    ("services", "batch", "guard"),
    [(2, 8, True), (20, 180, True), (100, 900, True), (100, 900, False)],
)
def test_tick_and_memory(services: int, batch: int, guard: bool, site: Site) -> None:
    """A tenth of the workloads are services; a few of both kinds run, and the loop is closed.

    With *guard* memory and the order of ending are looked after, which is the default.
    """
    made, jobs = crowd(site, services, batch, f"memory: {{guard: {str(guard).lower()}}}\n")
    wanted = [Load(path, "bursts") for path in made[:4]]
    wanted += [Load(path, "hog") for path in jobs[:6]]
    with loads(wanted, seconds=SECONDS + 30) as running, AgentRun(site) as agent:
        agent.ready()
        running.start()
        # No request in between: rendering the state would delay the control thread.
        time.sleep(SECONDS)
        tick = agent.status()["tick"]
        assert tick["count"] > SECONDS // 2  # a look may find no reason for one
        guardian = pss_bytes(agent.pids()[0]) or 0
        before = footprint(agent)
        time.sleep(5)
        cpu = (footprint(agent).cpu_s - before.cpu_s) / 5
        assert agent.stop() == 0
    total = before.pss_bytes
    print(
        f"\n{services + batch} workloads, guard of memory {'on' if guard else 'off'}: "
        f"tick median {tick['duration_median_ns'] / 1e6:.2f} ms, "
        f"p99 {tick['duration_p99_ns'] / 1e6:.2f} ms, {tick['overruns']} overruns; PSS guardian "
        f"{guardian / 2**20:.1f} MiB + agent {(total - guardian) / 2**20:.1f} "
        f"MiB; {cpu:.1%} of a CPU; {os.cpu_count()} CPUs"
    )
    assert total <= 90 * 2**20
    assert tick["duration_median_ns"] <= (3_000_000 if batch < 900 else 5_000_000)
    assert tick["duration_p99_ns"] <= 15_000_000
