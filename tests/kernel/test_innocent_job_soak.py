# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A light job beside a service that suffers from a load outside all workloads.

Runs of a minute with and without the agent take turns. ``SWEETPOINT_INNOCENT_RUNS`` and
``SWEETPOINT_INNOCENT_S`` make it shorter.
"""

from collections import Counter
from collections.abc import Sequence
import os
from pathlib import Path
import random
import statistics
import time

import pytest

from controller.core.decision import ChannelState
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun
from tests.kernel.busy_host import BusyHost, innocent
from tests.kernel.looks import check_looks, look_at_random
from tests.support.agreement.seen import Seen, check_lines, check_parts, check_taken, replayed
from tests.support.needs import needs_program

pytestmark = [pytest.mark.kernel, pytest.mark.soak]

RUNS = int(os.environ.get("SWEETPOINT_INNOCENT_RUNS", "5"))
SECONDS = float(os.environ.get("SWEETPOINT_INNOCENT_S", "60"))
_MOMENTS = 8


@pytest.mark.parametrize(
    "service",
    [
        pytest.param(name, marks=needs_program(program))
        for name, program in (
            ("nginx", "nginx"),
            ("memcached", "memcached"),
            ("redis", "redis-server"),
        )
    ],
)
def test_an_innocent_job_keeps_its_work(
    cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path, service: str
) -> None:
    host = BusyHost(cgroup_root, cgroup_layout, tmp_path)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}, {tmp_path}")
    works: dict[bool, list[float]] = {True: [], False: []}
    with host.serving(4 * RUNS * (SECONDS + 60), service):
        for number in range(RUNS):
            for managed in (True, False) if number % 2 else (False, True):
                host.move(tmp_path / f"{service}-{number}-{managed}")
                # The load comes and goes at the same times in both.
                numbers = random.Random(seed + number)
                works[managed].append(managed_run(host, numbers) if managed else run(host, numbers))
    for managed, each in works.items():
        what = "with the agent" if managed else "without it"
        cpus = " ".join(f"{work:.4f}" for work in each)
        print(f"{service}: CPUs of the job {what}, median {statistics.median(each):.4f}: {cpus}")


def run(host: BusyHost, numbers: random.Random) -> float:
    """Return the CPUs that the job used."""
    with innocent(host, numbers) as (job, visits):
        began_s, before = time.monotonic(), job.schedstat(host.batch[2])
        while time.monotonic() < began_s + SECONDS:
            for each in visits:
                each.poll()
            time.sleep(0.1)
        used = job.schedstat(host.batch[2]).since(before)
        return used.oncpu_ns / 1e9 / (time.monotonic() - began_s)


def managed_run(host: BusyHost, numbers: random.Random) -> float:
    """Return the CPUs that the job used beside an agent; check what that did and said."""
    recording = host.home / "recording.jsonl.gz"
    moments = random.Random(host.home.name)  # those of the load are the same without the agent
    with AgentRun(host, "--record", str(recording)) as agent:
        agent.ready()
        with innocent(host, numbers) as (job, visits):
            began_s, before = time.monotonic(), job.schedstat(host.batch[2])
            looked = look_at_random(host, agent, visits, moments, SECONDS, _MOMENTS)
            used = job.schedstat(host.batch[2]).since(before)
            cpus = used.oncpu_ns / 1e9 / (time.monotonic() - began_s)
        assert agent.stop() == 0
    seen = list(replayed(recording))
    check_looks(looked, seen)
    check_lines(seen)
    check_parts(seen)
    check_taken(seen)
    check_innocent(seen)
    return cpus


def check_innocent(seen: Sequence[Seen]) -> None:
    """Check that a quota is in force in no other state than ``squeeze``."""
    states = Counter(
        (str(demand.state), len(tick.record.limited))
        for tick in seen
        for demand in tick.plan.demands
    )
    print(f"ticks by state and number of limited jobs: {dict(states)}")
    limited = {state for state, count in states if count}
    assert limited <= {ChannelState.SQUEEZE}, states
