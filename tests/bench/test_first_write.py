# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""From the begin of harm to the first limit, with ticks that the kernel causes and without.

A hog begins to run on the CPU of a service. Rounds with and without take turns, each with an agent
of its own. ``SWEETPOINT_FIRST_WRITE_ROUNDS`` is how many pairs of rounds there are, 10 by default.
"""

from collections import Counter
from collections.abc import Callable
import os
import random
import statistics
import time

import pytest

from controller.core.units import NS_PER_MS
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh
from tests.support.waiting import eventually

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

ROUNDS = int(os.environ.get("SWEETPOINT_FIRST_WRITE_ROUNDS", "10"))
# Longer than the window, so that the agent knows how the service is without the hog.
SETTLE_S = 3.0
MODULES = {"with": "controller.cli.main", "without": "tests.bench.looks_only"}
# The service accepts what it waits for without the hog. No sched-idle, which acts before any harm.
PROFILE = """\
name: nginx
indicators:
  runq_p99: {sweet_point: 4ms}
  runq_delay_p99: {sweet_point: 4ms}
channels: [cpu]
sched_idle: false
"""


def test_time_to_the_first_write(site: Site) -> None:
    (site.home / "tight.yaml").write_text(PROFILE)
    site.write("profiles: [tight.yaml]\n")
    outweigh(site.root, 200)
    outweigh(site.root / "batch")
    numbers = random.Random(1)
    took_ms: dict[str, list[float]] = {how: [] for how in MODULES}
    looks: dict[str, Counter[str]] = {how: Counter() for how in MODULES}
    service, hog = Load(site.service, "bursts", CPU), Load(site.batch[0], "hog", CPU)
    for _ in range(ROUNDS):
        for how, module in MODULES.items():
            with loads([service]) as serving, loads([hog]) as harm:
                serving.start()
                with AgentRun(site, module=module) as agent:
                    eventually(
                        "ticks that are left out", lambda: _looks(agent.ready())["quiet"] > 5
                    )
                    time.sleep(SETTLE_S + numbers.random())
                    took_ms[how].append(_until_a_write(site, harm.start))
                    looks[how] += _looks(agent)
                    assert agent.stop() == 0
    for how, found in took_ms.items():
        p95 = statistics.quantiles(found, n=20, method="inclusive")[-1]
        print(
            f"\n{how}: {statistics.median(found):.0f} ms, p95 {p95:.0f} ms, "
            f"{min(found):.0f} to {max(found):.0f} ms; looks: {dict(looks[how])}"
        )
    assert statistics.median(took_ms["with"]) < statistics.median(took_ms["without"])


def _looks(agent: AgentRun) -> Counter[str]:
    time.sleep(1)  # the request itself is a reason for a tick
    return Counter(agent.status()["tick"]["looks"])


def _until_a_write(site: Site, begin: Callable[[], None]) -> float:
    """Call *begin*; return how long it then takes until a quota is written, in ms."""
    quotas = [file for name in ("cpu.max", "cpu.cfs_quota_us") for file in site.batch[0].glob(name)]
    before = [file.read_text() for file in quotas]
    begin()
    began_ns = time.monotonic_ns()

    def is_written() -> bool:
        time.sleep(0.002)
        return [file.read_text() for file in quotas] != before

    eventually("a limit", is_written)
    return (time.monotonic_ns() - began_ns) / NS_PER_MS
