# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""An hour of a real agent on a busy host: everything that tells of it says the same.

At random moments the kernel's files, /statusz, /metrics, the page and ``top`` are read. Afterwards
they are compared with the recording, whose plans are computed again, and so are the log,
``explain`` and ``advise``. In the second half sched-idle is on, after a reload.
``SWEETPOINT_AGREEMENT_S`` and ``SWEETPOINT_AGREEMENT_MOMENTS`` shorten the hour.
"""

from collections import Counter
from collections.abc import Sequence
import os
from pathlib import Path
import random
import signal

import pytest

from controller.core.model import QosClass
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun
from tests.kernel.busy_host import JOBS, SERVICE_NAMES, BusyHost, visiting
from tests.kernel.looks import check_looks, look_at_random
from tests.support.agreement.seen import Seen, check_lines, check_parts, check_taken, replayed
from tests.support.agreement.told import (
    Told,
    check_culprits,
    check_squeezes,
    check_suffered,
    check_verdicts,
    check_worst,
)
from tests.support.needs import needs_program
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.soak]

SECONDS = float(os.environ.get("SWEETPOINT_AGREEMENT_S", "3600"))
MOMENTS = int(os.environ.get("SWEETPOINT_AGREEMENT_MOMENTS", "200"))


@pytest.fixture
def host(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> BusyHost:
    return BusyHost(cgroup_root, cgroup_layout, tmp_path)


@needs_program("nginx")
def test_everything_says_the_same_for_an_hour(host: BusyHost, subtests: pytest.Subtests) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}, {host.home}")
    numbers = random.Random(seed)
    recording = host.home / "recording.jsonl.gz"
    before = host.knobs()
    with (
        host.serving(SECONDS + 60),
        AgentRun(host, "--record", str(recording)) as agent,
    ):
        agent.ready()
        with visiting(host, numbers) as visits:
            looked = look_at_random(host, agent, visits, numbers, SECONDS / 2, MOMENTS // 2)
            host.write(sched_idle="true")
            agent.process.send_signal(signal.SIGHUP)
            eventually("jobs that yield", host.idle_jobs)
            looked += look_at_random(host, agent, visits, numbers, SECONDS / 2, MOMENTS // 2)
        assert agent.stop() == 0
    (host.home / "agent.log").write_text(agent.output)
    assert host.knobs() == before
    seen = list(replayed(recording))
    told = Told(host.home / "data", seen, "3h")
    describe(seen)
    with subtests.test("moments"):
        check_looks(looked, seen)
    with subtests.test("log"):
        check_log(agent.output, seen)
    for job in (each for each in seen[-1].workloads if each.qos is QosClass.BE):
        with subtests.test("explain", job=job.name):
            print(f"{job.name}: {check_squeezes(told, job)} seconds of explain judged")
    with subtests.test("one verdict"):
        check_verdicts(told, SERVICE_NAMES, JOBS)
    with subtests.test("suffered"):
        check_suffered(told)
    with subtests.test("taken"):
        check_taken(seen)
    with subtests.test("parts"):
        check_parts(seen)
    for service in SERVICE_NAMES:
        with subtests.test("at worst", service=service):
            print(f"{service}: at worst {check_worst(told, service) / 1e6:.3f} ms")
        with subtests.test("culprits", service=service):
            print(f"{service}: largest culprits {Counter(check_culprits(told, service))}")


def describe(seen: Sequence[Seen]) -> None:
    """Print what the hour was like."""
    states = Counter(
        (str(each.state), "limited" if tick.record.limited else "free")
        for tick in seen
        for each in tick.plan.demands
    )
    print(f"{len(seen)} ticks by state: {dict(states)}")


def check_log(output: str, seen: Sequence[Seen]) -> None:
    """Check that the log has each verdict of the recording, in order, with what was in force."""
    lines = iter(output.splitlines())
    for tick in seen:
        for each in tick.plan.verdicts:
            text = f" INFO {each.subject}: {each.text}"
            assert any(line.endswith(text) for line in lines), text
    print(f"{check_lines(seen)} lines of the log give a quota")
