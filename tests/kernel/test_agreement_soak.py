# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""An hour of a real agent on a busy host: everything that tells of it says the same.

At random moments the kernel's files, /statusz, /metrics, the page and ``top`` are read. Afterwards
they are compared with the recording, whose plans are computed again, and so are the log,
``explain`` and ``advise``. ``SWEETPOINT_AGREEMENT_S`` and ``SWEETPOINT_AGREEMENT_MOMENTS`` shorten
the hour.
"""

from collections import Counter
from collections.abc import Sequence
import contextlib
import io
import json
import os
from pathlib import Path
import random
import time
from typing import Any, NamedTuple

import pytest

from controller.cli.main import main
from controller.core.model import QosClass
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun
from tests.kernel.busy_host import JOBS, SERVICE_NAMES, BusyHost, visiting
from tests.support.agreement.seen import Seen, check_lines, check_parts, check_quotas, replayed
from tests.support.agreement.surfaces import Surfaces, check_surfaces
from tests.support.agreement.told import (
    Told,
    check_squeezes,
    check_suffered,
    check_verdicts,
    check_worst,
    largest_parts,
)
from tests.support.needs import needs_program
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.soak, needs_program("nginx")]

SECONDS = float(os.environ.get("SWEETPOINT_AGREEMENT_S", "3600"))
MOMENTS = int(os.environ.get("SWEETPOINT_AGREEMENT_MOMENTS", "200"))


@pytest.fixture
def host(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> BusyHost:
    return BusyHost(cgroup_root, cgroup_layout, tmp_path)


class Looked(NamedTuple):
    """A moment: the kernel's files and what the agent shows, while neither changed."""

    quotas: dict[str, float | None]
    knobs: dict[str, str]
    shown: Surfaces
    tries: int


def look(host: BusyHost, agent: AgentRun) -> Looked:
    """Read everything, again and again until nothing changed meanwhile.

    The agent writes a knob before it publishes that, in one tick. So the same is to be published by
    a later tick.
    """
    tries = 0

    def once() -> Looked | None:
        nonlocal tries
        tries += 1
        files, quotas = host.knobs(), host.quotas()
        status = agent.status()
        metrics, page = agent.get("/metrics"), agent.get("/")
        top = top_of(host)
        later = eventually("a later tick", lambda: later_than(agent, status))
        if metrics is None or page is None or not same(status, later) or host.knobs() != files:
            return None
        shown = Surfaces(status, metrics, page, top, until_ns=later["time_ns"])
        return Looked(quotas, dict(files), shown, tries)

    return eventually("a moment without a change", once)


def top_of(host: BusyHost) -> str:
    out = io.StringIO()
    url = f"http://127.0.0.1:{host.port}"
    with contextlib.redirect_stdout(out):
        assert main(["top", "--once", "--interval", "0.1", "--url", url]) == 0
    return out.getvalue()


def later_than(agent: AgentRun, status: dict[str, Any]) -> dict[str, Any] | None:
    later = agent.status()
    return later if later["tick"]["count"] > status["tick"]["count"] else None


def same(status: dict[str, Any], later: dict[str, Any]) -> bool:
    records = [dict(each["in_force"]) for each in (status, later)]
    for each in records:
        del each["time_ns"]
    return records[0] == records[1]


def test_everything_says_the_same_for_an_hour(host: BusyHost, subtests: pytest.Subtests) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}, {host.home}")
    recording = host.home / "recording.jsonl.gz"
    before = host.knobs()
    with (
        host.serving(SECONDS + 60),
        AgentRun(host, "--record", str(recording)) as agent,
    ):
        agent.ready()
        looked = look_at_random(host, agent, random.Random(seed))
        assert agent.stop() == 0
    (host.home / "agent.log").write_text(agent.output)
    assert host.knobs() == before
    seen = list(replayed(recording))
    told = Told(host.home / "data", seen, "3h")
    describe(looked, seen)
    with subtests.test("moments"):
        check_moments(looked, seen)
    with subtests.test("log"):
        check_log(agent.output, seen)
    for job in (each for each in seen[-1].workloads if each.qos is QosClass.BE):
        with subtests.test("explain", job=job.name):
            print(f"{job.name}: {check_squeezes(told, job)} seconds of explain judged")
    with subtests.test("one verdict"):
        check_verdicts(told, SERVICE_NAMES, JOBS)
    with subtests.test("suffered"):
        check_suffered(told)
    with subtests.test("parts"):
        check_parts(seen)
    for service in SERVICE_NAMES:
        with subtests.test("at worst", service=service):
            print(f"{service}: at worst {check_worst(told, service) / 1e6:.3f} ms")
        with subtests.test("culprits", service=service):
            print(f"{service}: {Counter(largest_parts(told, service))}")


def look_at_random(host: BusyHost, agent: AgentRun, numbers: random.Random) -> list[Looked]:
    """Look at *host* at random moments while its loads come and go."""
    began_s = time.monotonic()
    times_s = sorted(began_s + numbers.uniform(5, SECONDS) for _ in range(MOMENTS))
    looked = []
    with visiting(host, numbers) as visits:
        for moment_s in times_s:
            while time.monotonic() < moment_s:
                for each in visits:
                    each.poll()
                time.sleep(0.1)
            looked.append(look(host, agent))
    return looked


def describe(looked: Sequence[Looked], seen: Sequence[Seen]) -> None:
    """Print what the hour was like."""
    states = Counter(each.state for tick in seen for each in tick.plan.demands)
    limited = Counter(sum(q is not None for q in each.quotas.values()) for each in looked)
    print(f"{len(seen)} ticks, states {dict(states)}")
    print(f"{len(looked)} moments, tries {dict(Counter(each.tries for each in looked))}")
    print(f"moments by number of limited jobs: {dict(limited)}")


def check_moments(looked: Sequence[Looked], seen: Sequence[Seen]) -> None:
    """Check that all surfaces and the kernel's files give the recorded state."""
    records = {tick.time_ns: tick.record for tick in seen}
    wrong = []
    for each in looked:
        record = records[each.shown.status["in_force"]["time_ns"]]
        try:
            check_quotas(record, each.quotas)
            check_surfaces(each.shown, record)
        except AssertionError as error:
            wrong.append(f"{each.shown.status['time_ns']}: {error}")
    assert not wrong, f"{len(wrong)} of {len(looked)}: " + "\n".join(wrong[:5])


def check_log(output: str, seen: Sequence[Seen]) -> None:
    """Check that the log has each verdict of the recording, in order, with what was in force."""
    lines = iter(output.splitlines())
    for tick in seen:
        for each in tick.plan.verdicts:
            text = f" INFO {each.subject}: {each.text}"
            assert any(line.endswith(text) for line in lines), text
    print(f"{check_lines(seen)} lines of the log give a quota")
