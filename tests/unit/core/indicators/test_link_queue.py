# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the services' packets wait and lose in shaped links."""

from dataclasses import replace

import pytest

from controller.core.decision import Indicator, IndicatorStatus
from controller.core.indicators.link_queue import LinkWindows
from controller.core.model import IndicatorName, LinkSample, QosClass, Target, TargetKind
from controller.core.settings import IndicatorSpec
from tests.closed_loop import SECOND_NS, TICK_NS, make_spec

ETH0, ETH1 = (Target(TargetKind.LINK, "4026531840", index, f"eth{index}") for index in (1, 2))


def spec_of(name: IndicatorName, min_samples: int = 0) -> IndicatorSpec:
    return replace(make_spec(), name=name, sweet_point=1e6, min_samples=min_samples)


BACKLOG, DROPS = spec_of(IndicatorName.NET_BACKLOG), spec_of(IndicatorName.NET_DROPS)


def tier(
    packets: int, *, drops: int = 0, backlog: int = 0, link: Target = ETH0, name: str = QosClass.LS
) -> LinkSample:
    return LinkSample(link, False, name, packets * 1000, packets, drops, backlog)


def seen(*ticks: list[LinkSample]) -> LinkWindows:
    windows = LinkWindows()
    for number, tiers in enumerate(ticks, 1):
        windows.update(tiers, number * TICK_NS, SECOND_NS, rebase=False)
    return windows


def told(windows: LinkWindows, spec: IndicatorSpec) -> Indicator:
    found = windows.indicator("web", spec)
    assert found is not None
    return found


def test_a_host_that_shapes_no_link_has_no_source() -> None:
    windows = seen([], [tier(5, name=QosClass.BE)])
    assert windows.indicator("web", BACKLOG) is None
    assert windows.indicator("web", DROPS) is None


def test_a_link_that_went_is_stale() -> None:
    windows = seen([tier(5)], [tier(9)], [])
    assert told(windows, DROPS).status is IndicatorStatus.STALE
    assert told(windows, BACKLOG).value is None


def test_the_wait_of_a_full_tier_is_its_backlog_over_its_rate() -> None:
    # 200 packets of 1,000 bytes per tick are a megabyte per second; 20 kB wait 20 ms.
    windows = seen(*([tier(200 * tick, backlog=20_000)] for tick in range(1, 10)))
    found = told(windows, BACKLOG)
    assert found.value == pytest.approx(20e6)
    assert found.status is IndicatorStatus.FRESH


def test_a_backlog_now_and_then_counts_by_the_time_it_is_there() -> None:
    windows = seen(
        *([tier(200 * tick, backlog=20_000 if tick % 5 == 0 else 0)] for tick in range(1, 20))
    )
    assert told(windows, BACKLOG).value == pytest.approx(4e6)


def test_nothing_leaves_at_all() -> None:
    windows = seen(*([tier(50, backlog=3000)] for _ in range(10)))
    assert told(windows, BACKLOG).value == SECOND_NS


def test_a_tier_without_packets_is_idle() -> None:
    windows = seen(*([tier(50)] for _ in range(10)))
    for spec in (BACKLOG, DROPS):
        found = told(windows, spec)
        assert (found.status, found.value) == (IndicatorStatus.IDLE, None)


def test_drops_are_a_share_of_what_was_offered_on_the_worst_side() -> None:
    windows = seen(
        *([tier(99 * tick, drops=tick), tier(90 * tick, drops=0, link=ETH1)] for tick in range(9))
    )
    found = told(windows, DROPS)
    assert found.value == pytest.approx(0.01)
    assert found.samples == 500


def test_one_drop_of_few_packets_is_chance() -> None:
    windows = seen(*([tier(3 * tick, drops=tick // 8)] for tick in range(9)))
    assert told(windows, spec_of(IndicatorName.NET_DROPS, 100)).value is None
    assert told(windows, spec_of(IndicatorName.NET_DROPS, 100)).status is IndicatorStatus.FRESH
    assert told(windows, DROPS).value is not None


def test_a_tier_that_was_made_anew_starts_anew() -> None:
    windows = seen(*([tier(99 * tick, drops=tick)] for tick in range(9)), [tier(1, drops=0)])
    assert told(windows, DROPS).value is None


def test_nothing_is_compared_across_a_gap() -> None:
    windows = seen(*([tier(99 * tick, drops=tick)] for tick in range(9)))
    windows.update([tier(10**6, drops=10**5)], 100 * SECOND_NS, SECOND_NS, rebase=True)
    assert told(windows, DROPS).value is None
