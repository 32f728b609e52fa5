# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""When a quota alone is tried, when the other rungs come first, and for how long."""

import pytest

from controller.core.channels.ladder_channel import Front, RungTrial
from controller.core.model import Knob

TICK_S = 0.2
RESCTRL = frozenset({Knob.LLC_WAYS, Knob.MBA})
FAILED = "resctrl.l3 and resctrl.mb limited first: the service suffers with a quota alone, "
TRIED = "resctrl.l3 and resctrl.mb let go on trial: whether a quota alone protects"


class Bench:
    """A trial and what it reported, tick by tick."""

    def __init__(self) -> None:
        self.trial = RungTrial()
        self.demands: set[float | None] = set()

    def run(
        self,
        seconds: float,
        deviation: float | None = 0.0,
        applied: float = 0.5,
        others: frozenset[Knob] = RESCTRL,
        short: bool = False,
    ) -> list[str]:
        """Return what was reported; the knobs that are not spared are limited in a squeeze."""
        reports = []
        for _ in range(round(seconds / TICK_S)):
            limited = bool(others) and not self.trial.spared
            self.trial.update(Front(others, limited, short), applied, deviation, TICK_S)
            self.demands.add(self.trial.demand)
            if self.trial.report:
                reports.append(self.trial.report)
        return reports


@pytest.fixture
def first() -> Bench:
    """A squeeze begins, with the quota alone."""
    bench = Bench()
    assert bench.run(1, None) == []
    assert bench.trial.spared == RESCTRL
    return bench


@pytest.fixture
def failed(first: Bench) -> Bench:
    """In the squeeze the other rungs have just come first."""
    first.run(5, 0.0)
    assert first.run(2, 0.8) == [f"{FAILED}tried again in 300 s"]
    return first


def test_a_squeeze_begins_with_the_quota_alone_while_that_suffices(first: Bench) -> None:
    assert first.run(5, 1.5, applied=0.1) == [], "what begins a squeeze does not end its first way"
    assert first.run(600, 0.1) == []
    assert first.trial.spared == RESCTRL
    assert first.demands == {None}


@pytest.mark.parametrize(
    ("seconds", "deviation", "applied"),
    [
        pytest.param(7.0, 0.6, 0.2, id="it suffers again"),
        pytest.param(10.0, 0.0, 1.0, id="the quota is at its stop"),
    ],
)
def test_where_a_quota_is_not_enough_the_other_rungs_come_first(
    first: Bench, seconds: float, deviation: float, applied: float
) -> None:
    first.run(5, 0.0)
    assert first.run(seconds, deviation, applied) == [f"{FAILED}tried again in 300 s"]
    assert not first.trial.spared
    assert first.demands == {None, 1 / 3}, "the quota is the last of three rungs"
    # Squeezes of the next minutes begin as this one went on.
    first.run(60, None)
    assert not first.trial.spared
    first.run(300, None)
    assert first.trial.spared == RESCTRL


def test_a_service_that_suffers_from_the_begin_on_has_eight_seconds(first: Bench) -> None:
    assert first.run(7.8, 1.0) == []
    assert first.run(1, 1.0) != []


def test_a_moment_of_suffering_is_not_enough(first: Bench) -> None:
    first.run(5, 0.0)
    assert first.run(0.4, 1.0) == []
    assert first.run(5, 0.0) == []


def test_after_the_pause_a_strict_quota_alone_is_tried(failed: Bench) -> None:
    assert failed.run(298) == []
    failed.demands.clear()
    assert failed.run(2, applied=0.7) == [TRIED]
    assert failed.trial.spared == RESCTRL
    assert failed.demands == {None, 0.4}
    failed.demands.clear()
    assert failed.run(5, 0.8) == [f"{FAILED}tried again in 600 s"]
    assert failed.demands == {None, 0.7}, "the other rungs are put back as they were"


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({"deviation": 0.3}, id="the service is not well"),
        pytest.param({"others": frozenset()}, id="nothing can be let go"),
    ],
)
def test_there_is_no_trial(failed: Bench, state: dict[str, float | frozenset[Knob]]) -> None:
    assert failed.run(600, **state) == []  # type: ignore[arg-type]
    assert not failed.trial.spared


def test_rungs_that_are_not_enough_are_let_go_though_the_service_suffers(failed: Bench) -> None:
    failed.run(298)
    assert failed.run(2, 0.6, short=True) == [TRIED]


def test_pauses_double_until_the_quota_was_enough_for_longer(failed: Bench) -> None:
    for pause in (300, 600, 1200, 2400, 3600):
        assert failed.run(pause + 1) == [TRIED]
        if pause < 3600:
            assert failed.run(2, 0.8) == [f"{FAILED}tried again in {min(3600, 2 * pause)} s"]
    failed.run(3601)
    assert failed.run(2, 0.8) == [f"{FAILED}tried again in 300 s"]


def test_without_a_squeeze_the_failure_is_forgotten_after_the_pause(failed: Bench) -> None:
    failed.run(310, None)
    assert failed.trial.spared == RESCTRL
    failed.run(10, 0.0)
    assert failed.trial.spared == RESCTRL


def test_a_short_break_of_the_squeeze_changes_nothing(first: Bench) -> None:
    first.run(60, 0.0)
    first.run(20, None, others=frozenset())
    assert first.trial.spared == RESCTRL
    first.run(20, None, others=frozenset())
    assert not first.trial.spared, "the next squeeze is another one, without a quota to move"
