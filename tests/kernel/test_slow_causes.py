# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Causes of a slow service that are not the work of another workload, and two causes together.

Best-effort work is there and sleeps. Memory, disk and link are in ``test_refaults``,
``test_agent_disks`` and ``test_agent_links``.
"""

from collections.abc import Iterator
import contextlib
from pathlib import Path
import threading
import time

import pytest

from controller.core.units import NS_PER_SEC
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh
from tests.kernel.slow import Slow, pushing
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.apart,
    pytest.mark.thorough,
    pytest.mark.usefixtures("alone_on_cpu"),
]


@pytest.fixture
def slow(site: Site) -> Slow:
    return Slow(site)


def test_more_load_than_ever_while_it_was_well(slow: Slow) -> None:
    service = slow.site.service
    usual = [Load(service, "light", CPU), *(Load(each, "idle") for each in slow.site.batch)]
    with (
        pushing(slow.site, 5) as figure,
        AgentRun(slow.site) as agent,
        loads(usual) as running,
        loads([Load(service, "hog", CPU)]) as more,
    ):
        agent.ready()
        running.start()
        seconds: set[int] = set()

        def is_known() -> bool:
            """Whether ticks of 24 seconds took its use: of two periods of ten it knows one."""
            seconds.add(agent.status()["time_ns"] // NS_PER_SEC)
            return len(seconds) >= 24

        eventually("the use while it is well", is_known)
        assert not slow.is_told(agent, "")
        figure.value_ms = 80
        more.work_until("own-load", lambda: slow.is_told(agent, "own-load): it uses "))
        assert not slow.blamed_best_effort
        assert agent.stop() == 0


@contextlib.contextmanager
def stolen(folder: Path) -> Iterator[str]:
    """Write a /proc/stat in which half of all CPU time is stolen.

    Yield the shell command that shows it to a program.
    """
    file, shown, ended = folder / "stat", threading.Event(), threading.Event()
    words, *rows = Path("/proc/stat").read_text().split("\n")

    def write() -> None:
        fields, begin_s = words.split(), time.monotonic()
        cpus = sum(row.startswith("cpu") for row in rows)
        with file.open("w") as stat:
            while True:
                # In hundredths of a second.
                fields[8] = f"{round(50 * cpus * (time.monotonic() - begin_s)):012}"
                stat.seek(0)
                stat.write("\n".join((" ".join(fields), *rows)))
                stat.flush()
                shown.set()
                if ended.wait(0.1):
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert shown.wait(DEADLINE_S)
        yield f"mount --bind {file} /proc/stat"
    finally:
        ended.set()
        writer.join()


def test_a_host_that_takes_the_cpus(slow: Slow) -> None:
    with (
        stolen(slow.site.home) as show,
        pushing(slow.site, 80),
        AgentRun(slow.site, without=show) as agent,
    ):
        agent.ready()
        slow.wait_for("host): CPUs stood still or were taken for ", agent)
        assert not slow.blamed_best_effort
        assert agent.stop() == 0


def test_of_two_causes_the_larger_one_is_named(slow: Slow) -> None:
    batch = slow.site.root / "batch"
    outweigh(slow.shop, 8)
    with AgentRun(slow.site) as agent:
        agent.ready()
        slow.wait_for("another-service shop", agent, slow.shop, slow.site.batch[0])
        assert not slow.is_told(agent, "best-effort")
        # More than it, and than the service itself, which otherwise hardly waits for it.
        outweigh(batch, 64)
        slow.wait_for("best-effort batch:one", agent, slow.shop, slow.site.batch[0])
        assert agent.stop() == 0
