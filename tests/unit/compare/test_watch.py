# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What explains a block: the quota as it was seen, and the agent's counters."""

import math
from pathlib import Path
import threading

from tests.compare.policies import CpuKnobs
from tests.compare.watch import QuotaSeen, agent_ticks, agent_writes, watched
from tests.support.waiting import DEADLINE_S

METRICS = """\
# TYPE sweetpoint_knob_writes counter
sweetpoint_knob_writes_total{knob="cpu.idle",result="applied"} 9.0
sweetpoint_knob_writes_total{knob="cpu.quota",result="applied"} 12.0
sweetpoint_knob_writes_total{knob="cpu.quota",result="refused"} 3.0
sweetpoint_channel_ticks_total{channel="cache",state="free"} 60.0
sweetpoint_channel_ticks_total{channel="cpu",state="free"} 41.0
sweetpoint_channel_ticks_total{channel="cpu",state="not-be"} 26.0
"""


def test_falls_of_a_quota_are_counted() -> None:
    seen = QuotaSeen()
    for cpus in (math.inf, 1.0, 1.0, 0.5, 0.5, 0.5, 0.8, 0.8, math.inf, math.inf, 0.6, 0.6):
        seen.update(cpus)
    assert (seen.squeezes, seen.lowest_cpus) == (3, 0.5)


def test_a_value_between_two_writes_is_not_counted() -> None:
    seen = QuotaSeen()
    for cpus in (1.0, 1.0, 0.1, 1.0, 1.0):
        seen.update(cpus)
    assert (seen.squeezes, seen.lowest_cpus) == (1, 1.0)


def test_the_quota_is_watched_in_a_thread(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000")
    reads = threading.Semaphore(0)

    class Knobs(CpuKnobs):
        def quota_cpus(self) -> float:
            reads.release()
            return super().quota_cpus()

    with watched(Knobs(tmp_path, "v2")) as seen:
        for _ in range(3):
            assert reads.acquire(timeout=DEADLINE_S)
    assert (seen.squeezes, seen.lowest_cpus) == (1, 0.5)


def test_the_agents_counters_are_found_in_its_metrics() -> None:
    assert agent_writes(METRICS) == 12
    assert agent_ticks(METRICS) == {"free": 41, "not-be": 26}
    assert (agent_writes(""), agent_ticks("")) == (0, {})
