# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The thread of the history: a tick never waits for it, and never fails because of it."""

from dataclasses import replace
from pathlib import Path
import threading
from typing import Any

import pytest

from controller.agent.history.records import Stop
from controller.agent.history.writer import History
from controller.core.decision import Plan
from controller.core.in_force import InForce
from controller.core.model import Mode, Snapshot
from controller.demo.simulated_node import SimulatedNode
from tests.support.loops.closed_loop import TICK_NS, ClosedLoop, make_settings
from tests.support.loops.history_loop import CONFIG, read_moments, records
from tests.support.waiting import DEADLINE_S, eventually


def ticks(history: History, count: int, settings: Any = None) -> None:
    """Hand over *count* ticks of a node."""
    loop = ClosedLoop(SimulatedNode(3, wants=(1.2, 0.5)))
    for number in range(1, count + 1):
        snapshot = loop.node.snapshot(number * TICK_NS)
        plan = loop.planner.step(snapshot, loop.outcomes)
        loop.outcomes = loop.node.execute(plan.actions)
        in_force = loop.planner.settle(loop.outcomes)
        workloads = loop.node.workloads
        history.take(snapshot, plan, loop.outcomes, in_force, workloads, settings or loop.settings)


def test_what_was_handed_over_is_written_at_the_end(tmp_path: Path) -> None:
    history = History(tmp_path / "data", CONFIG)
    ticks(history, 100)
    history.restart()
    ticks(history, 1)
    history.close(DEADLINE_S)
    assert isinstance(records(tmp_path / "data")[-1], Stop)
    moments = read_moments(tmp_path / "data")
    assert any(moment.anew for moment in moments)
    assert sum(len(moment.verdicts) for moment in moments) > 0
    assert (history.state.problem, history.state.lost_moments) == ("", 0)


def test_without_a_tick_there_is_no_file(tmp_path: Path) -> None:
    history = History(tmp_path / "data", CONFIG)
    history.close(DEADLINE_S)
    assert not (tmp_path / "data").exists()


def test_an_error_ends_the_history_and_not_the_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = History(tmp_path / "data", CONFIG)
    nothing: Any = None
    broken = replace(Plan(time_ns=0), loops=(nothing,))
    history.take(
        Snapshot(time_ns=10**9, age_ns=0, workloads=()),
        broken,
        (),
        InForce(),
        (),
        make_settings(mode=Mode.OBSERVE),
    )
    eventually("the error", lambda: history.state.problem)
    ticks(history, 5)
    assert history.state.lost_moments == 5
    assert "the agent works without it" in caplog.text
    history.close(DEADLINE_S)


class Stuck:
    """Settings at which the thread waits, as it does for a disk that does not answer."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()

    @property
    def mode(self) -> Mode:
        self.reached.set()
        self.go.wait(DEADLINE_S)
        return Mode.ENFORCE


def test_a_tick_does_not_wait_for_a_disk_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.agent.history.writer._MAX_TICKS", 20)
    history, stuck = History(tmp_path / "data", CONFIG), Stuck()
    ticks(history, 5, stuck)  # a second of ticks wakes the thread
    assert stuck.reached.wait(DEADLINE_S)
    ticks(history, 50)
    assert history.state.lost_moments == 30
    history.close(0.01)  # the agent ends without it
    stuck.go.set()
