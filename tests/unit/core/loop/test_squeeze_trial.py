# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Trials of squeezes: what they conclude, and that only measured time counts."""

from dataclasses import replace

import pytest

from controller.core.decision import ChannelState, Plan
from controller.core.loop.evidence import SqueezeTrial
from controller.core.model import Channel, IndicatorName, Pause
from tests.sim.plants import CacheNode
from tests.support.loops.closed_loop import LAW, TICKS_PER_S, ClosedLoop
from tests.support.loops.resource_loop import demands, resource_settings, resource_spec

TICK_S = 0.2
WINDOW_S = 1.0
CPI, MPKI = IndicatorName.CPI, IndicatorName.LLC_MPKI
LET_GO = "the squeeze is let go"
NOT_CAUSED = "not caused by best-effort"


class Bench:
    """A trial and its clock; ``run`` returns the sentences of the time that it runs."""

    def __init__(self, unmet: bool = False) -> None:
        self.trial = SqueezeTrial(unmet)
        self.tick = 5_000_000  # the clock counts from the start of the host

    def run(
        self, seconds: float, applied: float, asks: bool = True, **deviations: float
    ) -> list[str]:
        reports = []
        known = {IndicatorName[name.upper()]: value for name, value in deviations.items()}
        for _ in range(round(seconds / TICK_S)):
            self.tick += 1
            now_s = self.tick * TICK_S
            self.trial.update(known, asks, applied, WINDOW_S, now_s, TICK_S)
            if self.trial.report:
                reports.append(self.trial.report)
        return reports


@pytest.fixture
def watched() -> Bench:
    """A trial whose squeeze was let go just now, at a deviation of 2."""
    bench = Bench()
    bench.run(1, 0.0, cpi=2)
    (report,) = bench.run(5.2, 1.0, cpi=2)
    assert LET_GO in report
    assert bench.trial.most == 0.0
    return bench


@pytest.fixture
def paused(watched: Bench) -> Bench:
    """A trial that failed just now."""
    (report,) = watched.run(4.2, 0.0, cpi=2)
    assert NOT_CAUSED in report
    return watched


def test_a_squeeze_in_vain_is_tried_again_after_a_pause(paused: Bench) -> None:
    paused.run(29, 0.0, cpi=2)
    assert paused.trial.most == 0.0
    paused.run(1.4, 0.0, cpi=2)
    assert paused.trial.most is None


def test_a_squeeze_that_helped_is_put_back(watched: Bench) -> None:
    (report,) = watched.run(3, 0.0, cpi=4)
    assert "it helps, and is put back" in report
    assert watched.trial.most is None


@pytest.mark.parametrize("unmet", [False, True])
def test_a_squeeze_that_helps_and_is_not_enough_is_a_trial_too(unmet: bool) -> None:
    bench = Bench(unmet)
    bench.run(1, 0.0, cpi=1.0)
    reports = bench.run(6, 1.0, cpi=0.4)
    assert [LET_GO in each for each in reports] == [True] * unmet
    if unmet:
        (report,) = bench.run(5, 0.0, cpi=0.8)
        assert NOT_CAUSED in report


def test_a_squeeze_that_is_nearly_enough_stays() -> None:
    bench = Bench(unmet=True)
    bench.run(1, 0.0, cpi=1.0)
    assert bench.run(60, 1.0, cpi=0.2) == []


def test_time_without_values_is_no_time_of_a_trial() -> None:
    bench = Bench()
    bench.run(1, 0.0, cpi=2)
    bench.run(4.4, 1.0, cpi=2)
    assert bench.run(3, 1.0) == []
    assert bench.run(0.4, 1.0, cpi=2) == []
    assert len(bench.run(0.6, 1.0, cpi=2)) == 1


def test_the_last_value_before_a_gap_hardly_counts_after_it(watched: Bench) -> None:
    """The squeeze is judged by what was measured, not by a low-pass of seconds ago."""
    watched.run(0.4, 0.0, cpi=2)
    watched.run(3.6, 0.0)
    (report,) = watched.run(0.2, 0.0, cpi=4)
    assert "it helps" in report


def test_without_values_for_too_long_a_trial_has_no_result(watched: Bench) -> None:
    watched.run(3, 0.0, cpi=2)
    assert watched.run(4, 0.0) == []
    (report,) = watched.run(10, 0.0)
    assert "no result" in report
    assert watched.trial.most is None
    # Neither is what comes later compared with what was before.
    assert watched.run(10, 0.0, cpi=4) == []


def test_a_trial_does_not_go_on_with_another_indicator(watched: Bench) -> None:
    """The one that is left is well, which does not mean that the service is."""
    watched.run(3, 0.0, cpi=2, llc_mpki=-1)
    assert watched.run(3, 0.0, llc_mpki=-1) == []
    assert watched.trial.most == 0.0
    (report,) = watched.run(3, 0.0, llc_mpki=-1)
    assert "no result" in report
    assert watched.trial.most is None


def test_a_pause_goes_on_without_values(paused: Bench) -> None:
    assert paused.run(20, 0.0) == []
    assert paused.trial.most == 0.0
    paused.run(9, 0.0, cpi=2)
    assert paused.trial.most == 0.0
    paused.run(1.4, 0.0, cpi=2)
    assert paused.trial.most is None


def test_a_squeeze_for_another_service_shows_nothing(watched: Bench) -> None:
    watched.run(3, 0.0, cpi=2)
    assert watched.run(10, 1.0, cpi=2) == []
    assert watched.run(3.6, 0.0, cpi=2) == []
    (report,) = watched.run(0.8, 0.0, cpi=2)
    assert NOT_CAUSED in report


def test_quiet_time_starts_the_pauses_anew(paused: Bench) -> None:
    """Also while the service does not ask, when the trial is not updated."""
    paused.run(2, 0.0, asks=False, cpi=-1)
    paused.tick += round(120 / TICK_S)
    paused.run(2, 0.0, cpi=-1)
    paused.run(1, 0.0, cpi=2)
    paused.run(6, 1.0, cpi=2)
    (report,) = paused.run(6, 0.0, cpi=2)
    assert "tried again in 30 s" in report


def texts(plans: list[Plan]) -> list[str]:
    return [verdict.text for plan in plans for verdict in plan.verdicts]


@pytest.fixture
def loop() -> ClosedLoop[CacheNode]:
    """A service that hurts itself, three seconds after the squeeze of its trial was let go."""
    node = CacheNode(1, wants=(1e9, 0.5e9), group=False)
    spec = replace(resource_spec(CacheNode), sweet_point=1.15)
    loop = ClosedLoop(node, resource_settings(node, specs=[spec]))
    loop.run(30)
    node.scale = 1.4
    while LET_GO not in "".join(texts([loop.step()])):
        assert loop.tick < 60 * TICKS_PER_S
    return loop


def test_a_result_is_reported_once(loop: ClosedLoop[CacheNode]) -> None:
    loop.pause = Pause(services=("web",))
    plans = loop.run(10)
    assert plans[-1].demands[1].state is ChannelState.PAUSED
    assert LET_GO not in "".join(texts(plans))


def test_a_pause_of_the_service_ends_its_trial(loop: ClosedLoop[CacheNode]) -> None:
    loop.run(3)
    loop.pause = Pause(services=("web",))
    loop.run(30)
    loop.pause = None
    assert NOT_CAUSED not in "".join(texts(loop.run(4)))
    # The next one takes all the time that it needs.
    assert NOT_CAUSED in "".join(texts(loop.run(20)))


def test_a_gap_between_ticks_ends_a_trial(loop: ClosedLoop[CacheNode]) -> None:
    loop.run(3)
    loop.tick += 10 * TICKS_PER_S
    after = "".join(texts(loop.run(4)))
    assert "no result" in after
    assert NOT_CAUSED not in after


def test_without_the_part_of_the_law_no_trial_limits_a_squeeze(loop: ClosedLoop[CacheNode]) -> None:
    law = replace(LAW, verify_squeeze=False)
    loop.reconfigure(replace(loop.settings, law=law))
    assert max(demands(loop.run(20), Channel.CACHE)) > 0.9
