# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A recording made before its settings had switches for parts of the law replays as before.

``first_law.jsonl.gz`` is 52 seconds of ``SimulatedNode``, recorded with the first law: two
best-effort workloads beside a service that is throttled by its own quota for two seconds, suffers
until a workload is to be evicted, and recovers.
"""

from dataclasses import replace
from pathlib import Path

from controller.agent.recording import read, replay
from controller.core.decision import Plan

RECORDING = Path(__file__).with_name("first_law.jsonl.gz")


def test_a_recording_of_the_first_law_replays_to_equal_plans() -> None:
    pairs = [(entry.plan, plan) for entry, plan in replay(read(RECORDING))]
    assert len(pairs) == 260
    assert any(plan.eviction for plan, _ in pairs)
    assert {state.state for plan, _ in pairs for state in plan.demands} >= {"self", "squeeze"}
    assert [without_words(before) for before, _ in pairs] == [
        without_words(now) for _, now in pairs
    ]


def without_words(plan: Plan) -> Plan:
    """Return *plan* without the lines of the log, which are those of the present version."""
    return replace(plan, verdicts=())
