# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from controller.core.control.evidence import Evidence, EvidenceGate
from controller.core.control.limiters import Headroom, HoldOffLatch, RateLimiter
from controller.core.control.pid import LowPass, dead_zone, deviation
from controller.core.control.rungs.allocator import allocate, total_for, water_fill
from controller.core.control.selector import Bid, choose
from controller.core.control.service_loops import StaleDataGuard
from controller.core.control.tuning import auto_gains, tightest_limits
from controller.core.decision import ChannelState
from controller.core.knob_values import (
    Quota,
    format_quota,
    is_same_setting,
    is_stricter,
    parse_quota,
    quota_for,
)
from controller.core.model import IndicatorName, Knob, KnobValue
from controller.core.settings import KnobLimits
from tests.closed_loop import SECOND_NS, make_spec

LIMITS = KnobLimits(floor=0.05, squeeze_per_s=2.0, release_step=0.1, release_spacing_ns=SECOND_NS)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2e6, 0.0), (4e6, 1.0), (1e6, -1.0), (8e6, 2.0), (1e9, 2.0), (1.0, -1.0)],
)
def test_deviation_is_a_clipped_log_ratio(value: float, expected: float) -> None:
    assert deviation(value, 2e6, make_spec()) == pytest.approx(expected)


def test_the_dead_zone_is_continuous() -> None:
    assert dead_zone(0.1, 0.1) == 0.0
    assert dead_zone(-0.05, 0.1) == 0.0
    assert dead_zone(0.3, 0.1) == pytest.approx(0.2)
    assert dead_zone(-0.3, 0.1) == pytest.approx(-0.2)


def test_low_pass_starts_at_its_first_input() -> None:
    low_pass = LowPass()
    assert low_pass.update(1.0, 0.2, 2.0) == 1.0
    assert low_pass.update(0.0, 2.0, 2.0) == pytest.approx(math.exp(-1))
    assert low_pass.update(5.0, 0.2, 0.0) == 5.0


def test_slew_squeezes_fast_and_releases_in_spaced_steps() -> None:
    slew = RateLimiter()
    assert slew.limit(1.0, LIMITS, 0, 0.2) == pytest.approx(0.4)
    assert slew.limit(0.5, LIMITS, 1, 0.2) == 0.5
    assert slew.limit(0.0, LIMITS, SECOND_NS, 0.2) == pytest.approx(0.4)
    assert slew.limit(0.0, LIMITS, SECOND_NS + 1, 0.2) == pytest.approx(0.4)
    assert slew.limit(0.0, LIMITS, 2 * SECOND_NS, 0.2) == pytest.approx(0.3)
    assert slew.limit(0.35, LIMITS, 2 * SECOND_NS + 1, 0.2) == 0.35


def test_latch_holds_and_doubles_its_hold_when_needed_again_soon() -> None:
    latch = HoldOffLatch(10, 1000)
    assert not latch.update(False, 0)
    assert latch.update(True, 0)
    assert latch.update(False, 9)
    assert not latch.update(False, 10)
    assert latch.update(True, 15)
    assert latch.update(False, 34)
    assert not latch.update(False, 35)
    assert latch.update(True, 100)
    assert not latch.update(False, 110)


def evidence(
    share: float | None = 1.0, throttled_ns: int | None = 0, steal: float | None = 0.0
) -> Evidence:
    return Evidence(
        be_share=share, throttled_ns=throttled_ns, inflicted_cpus=0.5, steal_cpus=steal, cpus=2
    )


@pytest.mark.parametrize(
    ("hurting", "seen", "state"),
    [
        (True, evidence(), ChannelState.SQUEEZE),
        (True, evidence(share=0.1), ChannelState.NOT_BE),
        (True, evidence(share=None), ChannelState.NOT_BE),
        (True, evidence(throttled_ns=1), ChannelState.SELF),
        (True, evidence(throttled_ns=None, steal=None), ChannelState.SQUEEZE),
        (True, evidence(steal=0.3), ChannelState.STEAL),
        (True, evidence(steal=0.05), ChannelState.SQUEEZE),
        (False, evidence(share=0.0, throttled_ns=1, steal=2.0), ChannelState.FREE),
    ],
)
def test_judgement(hurting: bool, seen: Evidence, state: ChannelState) -> None:
    assert EvidenceGate().update(hurting, lambda: seen, 0.2) is state


def test_a_squeeze_is_kept_up_with_half_the_share_that_starts_it() -> None:
    suspicion = EvidenceGate()
    assert suspicion.update(True, lambda: evidence(share=0.15), 0.2) is ChannelState.NOT_BE
    assert suspicion.update(True, lambda: evidence(share=0.25), 0.2) is ChannelState.SQUEEZE
    assert suspicion.update(True, lambda: evidence(share=0.15), 0.2) is ChannelState.SQUEEZE
    assert suspicion.update(True, lambda: evidence(share=0.05), 0.2) is ChannelState.NOT_BE


def bid(demand: float, state: ChannelState = ChannelState.SQUEEZE, deviation: float = 0.0) -> Bid:
    return Bid("web", IndicatorName.RUNQ_P99, demand, deviation, state)


def test_the_largest_demand_wins_and_excuses_count_only_without_one() -> None:
    assert choose([]).wanted == 0.0
    assert choose([bid(0.3), bid(1.7), bid(-4.0)]).wanted == 1.0
    assert choose([bid(0.3), bid(0.9, ChannelState.SELF)]).wanted == 0.3
    choice = choose(
        [bid(-0.1), bid(0.9, ChannelState.SELF), bid(0.9, ChannelState.STEAL, deviation=1.0)]
    )
    assert choice.wanted == 0.0
    assert choice.state is ChannelState.STEAL


def test_stale_guard_holds_for_its_ticks() -> None:
    guard = StaleDataGuard(2)
    states = [guard.update(stale) for stale in (False, True, True, True, False)]
    assert states == [
        ChannelState.FREE,
        ChannelState.HOLD,
        ChannelState.HOLD,
        ChannelState.SAFE,
        ChannelState.FREE,
    ]


def test_water_fill_shares_by_weight_within_the_room() -> None:
    paid = water_fill(1.0, {"a": 3.0, "b": 1.0}, {"a": 0.5, "b": 2.0, "c": 2.0})
    assert paid == pytest.approx({"a": 0.5, "b": 0.5, "c": 0.0})
    paid = water_fill(4.0, {"a": 3.0, "b": 1.0}, {"a": 0.5, "b": 2.0, "c": 2.0})
    assert paid == pytest.approx({"a": 0.5, "b": 2.0, "c": 1.5})
    assert sum(water_fill(9.0, {}, {"a": 0.5, "b": 2.0}).values()) == pytest.approx(2.5)


def test_a_total_above_the_wants_is_spread_in_proportion() -> None:
    shares = allocate(2.0, {"a": 0.75, "b": 0.25}, {"a": 0.05, "b": 0.05}, {"a": 1.0})
    assert shares == pytest.approx({"a": 1.5, "b": 0.5})


def test_ceiling_falls_at_once_and_rises_slowly() -> None:
    ceiling = Headroom(2.0)
    assert ceiling.update(0, 0.2, 1.9, 1.5) == pytest.approx(0.4)
    assert ceiling.update(SECOND_NS, 0.2, 1.9, 0.5) == pytest.approx(0.4)
    # The peak is 2 s old: now it rises, by a tenth of the way in 0.2 s.
    assert ceiling.update(3 * SECOND_NS, 0.2, 1.9, 0.5) == pytest.approx(0.5)
    assert ceiling.update(4 * SECOND_NS, 0.2, 1.9, 5.0) == 0.0


def test_equal_steps_of_demand_are_equal_factors_of_quota() -> None:
    assert total_for(0.0, 0.1, 1.6) == pytest.approx(1.6)
    assert total_for(1.0, 0.1, 1.6) == pytest.approx(0.1)
    assert total_for(0.5, 0.1, 1.6) == pytest.approx(0.4)
    assert total_for(0.3, 0.5, 0.2) == 0.5


@pytest.mark.parametrize(
    ("cpus", "value"),
    [
        (2.0, "20000 10000 0"),
        (0.5, "5000 10000 0"),
        (0.05, "1000 20000 0"),
        (0.01, "1000 100000 0"),
        (0.001, "1000 100000 0"),
    ],
)
def test_quota_periods_are_short_and_quotas_a_millisecond_at_least(cpus: float, value: str) -> None:
    assert format_quota(quota_for(cpus)) == value


def test_quota_text() -> None:
    assert parse_quota(KnobValue("max 100000 0")) == Quota(None, 100_000, 0)
    assert parse_quota(KnobValue("5000 10000 200")).cpus == 0.5
    assert format_quota(Quota(None, 100_000, 7)) == "max 100000 7"
    with pytest.raises(ValueError, match="not enough values"):
        parse_quota(KnobValue("max"))


def test_strictness() -> None:
    free, half = KnobValue("max 100000 0"), KnobValue("5000 10000 0")
    assert is_stricter(Knob.CPU_QUOTA, half, free)
    assert not is_stricter(Knob.CPU_QUOTA, free, half)
    assert not is_stricter(Knob.CPU_QUOTA, half, half)
    assert is_stricter(Knob.SCHED_IDLE, KnobValue("1"), KnobValue("0 1024"))
    assert not is_stricter(Knob.SCHED_IDLE, KnobValue("1"), KnobValue("1"))


def test_doubling_is_the_same_setting_and_halving_is_not() -> None:
    ours = KnobValue("1001 13529 0")
    assert is_same_setting(Knob.CPU_QUOTA, KnobValue("2002 27058 0"), ours)
    assert not is_same_setting(Knob.CPU_QUOTA, KnobValue("500 6764 0"), ours)
    assert not is_same_setting(Knob.CPU_QUOTA, KnobValue("max 27058 0"), ours)
    assert not is_same_setting(Knob.CPU_QUOTA, KnobValue("4000 27058 0"), ours)


def test_auto_gains_slow_down_with_the_window() -> None:
    fast = auto_gains(SECOND_NS, SECOND_NS // 5, 2 * SECOND_NS)
    slow = auto_gains(5 * SECOND_NS, SECOND_NS // 5, 2 * SECOND_NS)
    assert fast.kp == pytest.approx(2.0 / (4.0 * 3.0))
    assert fast.ti_s == 2.0
    assert fast.td_s == 0.0
    assert slow.kp / slow.ti_s < fast.kp / fast.ti_s


def test_the_tightest_of_several_limits() -> None:
    other = KnobLimits(
        floor=0.1, squeeze_per_s=1.0, release_step=0.05, release_spacing_ns=2 * SECOND_NS
    )
    both = tightest_limits([LIMITS, other], LIMITS)
    assert both == KnobLimits(
        floor=0.1, squeeze_per_s=2.0, release_step=0.05, release_spacing_ns=2 * SECOND_NS
    )
