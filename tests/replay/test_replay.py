# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Equal inputs give equal plans, bit by bit, also in another process."""

from dataclasses import replace
import hashlib
import os
from pathlib import Path
import subprocess
import sys

from controller.core.decision import Outcome, Plan
from controller.core.model import Knob, KnobValue, Pause, Snapshot, Workload
from controller.core.planner import Planner
from controller.core.settings import Settings
from controller.demo.simulated_node import SimulatedNode
from tests.support.loops.closed_loop import TICK_NS, make_settings, with_sweet_point

# How much earlier than it is due a tick comes that the kernel causes, in ticks.
UNEVEN = 0.87
Input = tuple[Snapshot, tuple[Outcome, ...], Settings | None, tuple[Workload, ...] | None]


def record() -> tuple[tuple[Workload, ...], list[Input], list[Plan]]:
    """Record a minute with a reload, a removed workload, a foreign value, a gap, and pauses.

    Ticks are left out before some that the kernel causes; the next one comes half a tick later.
    """
    node = SimulatedNode(11, wants=(0.8, 0.6, 0.4), services=2, request_rate=700.0)
    start = node.workloads
    settings = make_settings()
    planner = Planner(settings, start)
    inputs: list[Input] = []
    plans: list[Plan] = []
    outcomes: tuple[Outcome, ...] = ()
    left_out_ns = 0
    for tick in range(300):
        new_settings = new_workloads = None
        if tick == 100:
            new_settings = with_sweet_point(settings, 8e6)
            planner.reconfigure(new_settings)
        if tick == 150:
            node.leave(1)
            new_workloads = node.workloads
            planner.set_workloads(new_workloads)
        if tick == 170:
            node.write(node.best_effort[0], Knob.CPU_QUOTA, KnobValue("90000 100000 0"))
        if tick == 200:
            node.refused = {(node.best_effort[1].cgroup.id, Knob.CPU_QUOTA)}
        node.blind = 220 <= tick < 235
        pause = Pause(everything=True) if 250 <= tick < 260 else None
        if 270 <= tick < 280:
            pause = Pause(services=("web-0",), workloads=("batch-0",))
        if tick % 50 in (4, 5, 6):
            left_out_ns += TICK_NS
            continue
        time_ns = tick * TICK_NS
        if tick % 50 == 7:
            time_ns -= round(UNEVEN * TICK_NS)
        if tick % 50 == 8:
            time_ns -= round((UNEVEN - 0.5) * TICK_NS)
        snapshot = replace(node.snapshot(time_ns), pause=pause, left_out_ns=left_out_ns)
        left_out_ns = 0
        inputs.append((snapshot, outcomes, new_settings, new_workloads))
        plan = planner.step(snapshot, outcomes)
        plans.append(plan)
        outcomes = node.execute(plan.actions)
    return start, inputs, plans


def replay(start: tuple[Workload, ...], inputs: list[Input]) -> list[Plan]:
    planner = Planner(make_settings(), start)
    plans = []
    for snapshot, outcomes, new_settings, new_workloads in inputs:
        if new_settings is not None:
            planner.reconfigure(new_settings)
        if new_workloads is not None:
            planner.set_workloads(new_workloads)
        # New tuples, because the records read from a file are not shared either.
        snapshot = replace(
            snapshot,
            blame=tuple(each._replace() for each in snapshot.blame),
            knobs=tuple(each._replace() for each in snapshot.knobs),
        )
        plans.append(planner.step(snapshot, outcomes))
    return plans


def digest(plans: list[Plan]) -> str:
    # The repr of a float is exact.
    return hashlib.sha256("\n".join(map(repr, plans)).encode()).hexdigest()


def test_a_recording_replays_to_equal_plans() -> None:
    start, inputs, plans = record()
    assert any(plan.actions for plan in plans)
    assert any(plan.safe for plan in plans)
    assert replay(start, inputs) == plans


def test_hash_seeds_do_not_matter() -> None:
    """Workloads are looked up by hash; another seed must not change the order of any sum."""
    _, _, plans = record()
    code = "from tests.replay.test_replay import digest, record; print(digest(record()[2]))"
    for seed in ("1", "2"):
        process = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        assert process.stdout.strip() == digest(plans)
