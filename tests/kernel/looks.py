# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Looks at a busy host at random moments: the kernel's files, and everything that the agent shows.

Afterwards they are compared with what the agent recorded.
"""

from collections import Counter
from collections.abc import Sequence
import contextlib
import io
import json
import random
import time
from typing import Any, NamedTuple

from controller.cli.main import main
from controller.core.model import Knob
from tests.kernel.agent import AgentRun
from tests.kernel.busy_host import BusyHost, Visits
from tests.support.agreement.seen import Seen, check_quotas
from tests.support.agreement.surfaces import Surfaces, check_surfaces
from tests.support.waiting import eventually

__all__ = ("Looked", "check_looks", "look", "look_at_random")


class Looked(NamedTuple):
    """A moment: the kernel's files and what the agent shows, while neither changed.

    ``quotas`` are in CPUs by job, ``idle`` the jobs below sched-idle.
    """

    quotas: dict[str, float | None]
    idle: frozenset[str]
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
        files, quotas, idle = host.knobs(), host.quotas(), host.idle_jobs()
        status = agent.status()
        metrics, page = agent.get("/metrics"), agent.get("/")
        top = _printed(host, "top", "--once", "--interval", "0.1")
        now = json.loads(_printed(host, "status", "--json"))
        later = eventually("a later tick", lambda: _later(agent, status))
        if metrics is None or page is None or not _same(status, later) or host.knobs() != files:
            return None
        shown = Surfaces(status, metrics, page, top, now, until_ns=later["time_ns"])
        return Looked(quotas, idle, shown, tries)

    return eventually("a moment without a change", once)


def _printed(host: BusyHost, *words: str) -> str:
    out = io.StringIO()
    url = f"http://127.0.0.1:{host.port}"
    with contextlib.redirect_stdout(out):
        assert main([*words, "--url", url]) == 0
    return out.getvalue()


def _later(agent: AgentRun, status: dict[str, Any]) -> dict[str, Any] | None:
    later = agent.status()
    return later if later["tick"]["count"] > status["tick"]["count"] else None


def _same(status: dict[str, Any], later: dict[str, Any]) -> bool:
    records = [dict(each["in_force"]) for each in (status, later)]
    for each in records:
        del each["time_ns"]
    return records[0] == records[1]


def look_at_random(
    host: BusyHost,
    agent: AgentRun,
    visits: Sequence[Visits],
    numbers: random.Random,
    seconds: float,
    moments: int,
) -> list[Looked]:
    """Look at *host* at random moments of some *seconds* while its loads come and go."""
    began_s = time.monotonic()
    looked = []
    for offset_s in sorted(numbers.uniform(0, seconds) for _ in range(moments)):
        while time.monotonic() < began_s + offset_s:
            for each in visits:
                each.poll()
            time.sleep(0.1)
        looked.append(look(host, agent))
    return looked


def check_looks(looked: Sequence[Looked], seen: Sequence[Seen]) -> None:
    """Check that all surfaces and the kernel's files give the recorded state."""
    records = {tick.time_ns: tick.record for tick in seen}
    wrong = []
    for each in looked:
        record = records[each.shown.page_status["in_force"]["time_ns"]]
        try:
            check_quotas(record, each.quotas)
            check_surfaces(each.shown, record, each.idle)
            held = {knob.knob for knob in record.knobs}
            assert (Knob.SCHED_IDLE in held) is bool(each.idle), (held, each.idle)
        except AssertionError as error:
            wrong.append(f"{each.shown.page_status['time_ns']}: {error}")
    limited = Counter(sum(q is not None for q in each.quotas.values()) for each in looked)
    print(f"{len(looked)} moments, by number of limited jobs: {dict(limited)}")
    print(
        f"moments by number of jobs below sched-idle: {dict(Counter(len(x.idle) for x in looked))}"
    )
    print(f"tries of a moment: {dict(Counter(each.tries for each in looked))}")
    assert not wrong, f"{len(wrong)} of {len(looked)}: " + "\n".join(wrong[:5])
