# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The trial of a quota alone: when it begins, how it ends, and what it costs."""

import pytest

from controller.core.channels.rung_trial import Counts, Front, RungTrial, count
from controller.core.model import CgroupId, Knob, WorkloadSample

TICK_S = 0.2
BATCH, OTHER, WEB = CgroupId("node", 1), CgroupId("node", 2), CgroupId("node", 3)
RESCTRL = frozenset({Knob.LLC_WAYS, Knob.MBA})


class Bench:
    """A trial beside two workloads and a service that complete instructions at given rates."""

    def __init__(self) -> None:
        self.trial = RungTrial()
        self.batch, self.other, self.web = 2e9, 1e9, 3e9
        self._counts = [0.0, 0.0, 0.0]

    def run(
        self,
        seconds: float,
        deviation: float | None = 0.0,
        applied: float = 0.5,
        others: frozenset[Knob] = RESCTRL,
        short: bool = False,
    ) -> list[str]:
        """Return what was reported; no knob is in the ladder in front of the quota if let go."""
        reports = []
        for _ in range(round(seconds / TICK_S)):
            rates = self.batch, self.other, self.web
            for place, rate in enumerate(rates):
                self._counts[place] += rate * TICK_S
            limited = bool(others) and not self.trial.spared
            front = Front(others, limited, short)
            self.trial.update(front, applied, deviation, self._count, TICK_S)
            if self.trial.report:
                reports.append(self.trial.report)
        return reports

    def _count(self) -> Counts:
        batch, other, web = map(int, self._counts)
        return Counts({BATCH: batch, OTHER: other}, web)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def tried() -> Bench:
    """A trial that began just now; the demand before was 0.5."""
    bench = Bench()
    bench.run(30)
    assert bench.run(1)
    assert bench.trial.spared == RESCTRL
    return bench


def test_a_trial_begins_after_calm_windows_with_the_same_work(bench: Bench) -> None:
    assert bench.run(29) == []
    (report,) = bench.run(2)
    assert "resctrl.l3 and resctrl.mb let go on trial" in report
    assert bench.trial.active


def test_the_quota_is_strict_at_first(bench: Bench) -> None:
    demands = set()
    for _ in range(160):
        bench.run(TICK_S)
        demands.add(bench.trial.demand)
    assert demands == {None, 0.4}


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({"deviation": 0.3}, id="the service is not well"),
        pytest.param({"applied": 0.04}, id="the other rungs hardly limit"),
        pytest.param({"others": frozenset()}, id="nothing can be let go"),
    ],
)
def test_there_is_no_trial(bench: Bench, state: dict[str, float | frozenset[Knob] | None]) -> None:
    assert bench.run(200, **state) == []  # type: ignore[arg-type]
    assert bench.trial.spared == frozenset()


@pytest.mark.parametrize("what", ["batch", "web"])
def test_there_is_no_trial_while_work_or_load_changes(bench: Bench, what: str) -> None:
    for turn in range(10):
        setattr(bench, what, 1e9 if turn % 2 else 3e9)
        assert bench.run(20) == []


def test_a_moment_of_suffering_begins_the_calm_time_anew(bench: Bench) -> None:
    bench.run(25)
    bench.run(2, deviation=1.0)
    assert bench.run(29) == []
    assert bench.run(6) != []


def test_more_work_keeps_the_rungs_free(tried: Bench) -> None:
    tried.other = 2e9
    (report,) = tried.run(60, deviation=-0.1)
    assert "stay free: 1.33 of the work" in report
    assert tried.trial.spared == RESCTRL
    assert not tried.trial.active


@pytest.mark.parametrize(
    ("rate", "deviation", "within_s", "why"),
    [
        pytest.param(1e9, -0.1, 105, "1.00 of the work", id="no more work"),
        pytest.param(0.05e9, -1.0, 45, "0.68 of the work", id="far less, with the quota strict"),
        pytest.param(2e9, 0.8, 5, "the service suffers", id="the service suffers"),
    ],
)
def test_a_trial_fails(
    tried: Bench, rate: float, deviation: float, within_s: float, why: str
) -> None:
    tried.other = rate
    (report,) = tried.run(within_s, deviation=deviation)
    assert f"put back ({why} with a quota alone), tried again in 300 s" in report
    assert tried.trial.spared == frozenset()


def test_a_failed_trial_returns_to_the_demand_before(tried: Bench) -> None:
    demands = set()
    for _ in range(30):
        tried.run(TICK_S, deviation=0.8)
        demands.add(tried.trial.demand)
    assert demands == {None, 0.5}


def test_a_quota_at_its_stop_is_not_enough(tried: Bench) -> None:
    (report,) = tried.run(12, applied=1.0)
    assert "put back" in report


def test_a_trial_with_slack_waits_for_the_quota(tried: Bench) -> None:
    assert tried.run(80, deviation=-1.0) == []
    (report,) = tried.run(30, deviation=-1.0)
    assert "1.00 of the work" in report


def test_work_at_another_load_is_not_compared(tried: Bench) -> None:
    tried.other, tried.web = 2e9, 4e9
    (report,) = tried.run(60)
    assert "the load of the services changed" in report


def test_pauses_double(tried: Bench) -> None:
    tried.run(5, deviation=0.8)
    assert tried.run(290) == []
    tried.run(20)
    assert tried.trial.active
    (report,) = tried.run(5, deviation=0.8)
    assert "tried again in 600 s" in report


def test_suffering_later_puts_the_rungs_back(tried: Bench) -> None:
    tried.other = 2e9
    tried.run(60)
    (report,) = tried.run(5, deviation=0.8)
    assert "put back (the service suffers" in report


def test_a_result_is_verified_again_after_half_an_hour(tried: Bench) -> None:
    tried.other = 2e9
    tried.run(60)
    assert tried.run(1700) == []
    (back, again) = tried.run(150)
    assert "put back, to compare the work again" in back
    assert "let go on trial" in again


def test_without_a_squeeze_the_result_is_forgotten(tried: Bench) -> None:
    tried.other = 2e9
    tried.run(60)
    tried.run(20, deviation=None)
    assert tried.trial.sufficed
    tried.run(20, deviation=None)
    assert not tried.trial.sufficed, "the next squeeze is another one"


def test_rungs_that_are_not_enough_are_let_go_after_one_window(bench: Bench) -> None:
    assert bench.run(9.8, 1.5, short=True) == []
    (report,) = bench.run(1, 0.3, short=True)
    assert "let go on trial" in report
    assert not bench.trial.sufficed
    bench.batch *= 1.1
    (report,) = bench.run(45)
    assert report == "resctrl.l3 and resctrl.mb stay free: 1.07 of the work with a quota alone"


def test_a_window_in_which_the_rungs_are_enough_for_a_moment_counts_as_none(bench: Bench) -> None:
    assert bench.run(9, 0.3, short=True) == []
    assert bench.run(TICK_S, 0.3) == []
    assert bench.run(9, 0.3, short=True) == []


def test_rungs_that_are_not_enough_come_back_where_a_quota_is_not_either(bench: Bench) -> None:
    bench.run(11, short=True)
    (report,) = bench.run(3, 0.6)
    assert "the service suffers" in report
    assert not bench.trial.spared
    assert bench.run(290, 0.3, short=True) == [], "the pause"
    assert bench.run(20, 0.3, short=True)


def test_the_rungs_that_a_calm_trial_lets_go_had_sufficed(tried: Bench) -> None:
    assert tried.trial.sufficed


@pytest.fixture
def first() -> Bench:
    """A squeeze begins, with the quota alone."""
    bench = Bench()
    assert bench.run(1, None) == []
    assert bench.trial.spared == RESCTRL
    return bench


def test_a_squeeze_begins_with_the_quota_alone_while_that_suffices(first: Bench) -> None:
    assert first.run(5, 1.5, applied=0.1) == [], "what begins a squeeze does not end its first way"
    assert first.run(600, 0.1) == []
    assert first.trial.spared == RESCTRL
    assert not first.trial.active, "nothing is compared, and the release is that of any squeeze"


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
    assert first.run(seconds, deviation, applied) == [
        "resctrl.l3 and resctrl.mb limited first: the service suffers with a quota alone"
    ]
    assert not first.trial.spared
    # Squeezes of the next minutes begin as this one went on.
    first.run(60, None)
    assert not first.trial.spared
    first.run(300, None)
    assert first.trial.spared == RESCTRL


def test_instructions_are_counted_by_class() -> None:
    samples = [
        WorkloadSample(BATCH, instructions=5),
        WorkloadSample(OTHER, instructions=None),
        WorkloadSample(WEB, instructions=7),
    ]
    assert count(samples, {BATCH, OTHER}) == Counts({BATCH: 5}, 7)
