# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is undone in a pause, at once and again, and what goes on to measure."""

from collections.abc import Container
import time
from unittest.mock import Mock

import pytest

from actuators.base import RestoreReport
from actuators.executor import Executor
from controller.agent.knob_writer import KnobWriter
from controller.core.decision import Plan
from controller.core.model import Knob
from controller.core.units import NS_PER_SEC

PAUSED = Plan(time_ns=0, released=True)


class Paused:
    """A writer whose executor holds ``held``; ``undone`` has the knobs of each restore."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: set[Knob] = set()
        self.undone: list[Container[Knob]] = []
        self._now_s = 100
        executor = Mock(spec=Executor)
        executor.execute.return_value = ()
        executor.holds_any.side_effect = lambda knobs: any(each in knobs for each in self.held)
        executor.restore_all.side_effect = self._restore
        parts = {name: Mock() for name in ("resctrl", "cores", "oom", "io_cost")}
        self._writer = KnobWriter(executor, Mock(), links=None, enforcing=True, **parts)
        monkeypatch.setattr(time, "monotonic_ns", lambda: self._now_s * NS_PER_SEC)

    def _restore(self, knobs: Container[Knob] = frozenset(Knob)) -> RestoreReport:
        self.undone.append(knobs)
        return RestoreReport()

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self._now_s += 1
            self._writer.execute(PAUSED, ())


def test_the_groups_that_measure_are_undone_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made again, because a pause goes on measuring."""
    paused = Paused(monkeypatch)
    paused.run(1)
    paused.held = {Knob.RESCTRL_MOUNT, Knob.RESCTRL_MONITOR}
    paused.run(60)
    assert paused.undone == [frozenset(Knob)]


def test_what_the_kernel_refused_is_undone_again(monkeypatch: pytest.MonkeyPatch) -> None:
    paused = Paused(monkeypatch)
    paused.held = {Knob.CPU_QUOTA, Knob.RESCTRL_MONITOR}
    paused.run(21)
    assert len(paused.undone) == 3
    assert all(Knob.CPU_QUOTA in knobs for knobs in paused.undone)
    assert [Knob.RESCTRL_MONITOR in knobs for knobs in paused.undone] == [True, False, False]
