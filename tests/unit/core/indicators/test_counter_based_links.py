# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Queueing delay and loss of the services' packets in shaped links."""

from dataclasses import replace

import pytest

from controller.core.decision import Indicator, IndicatorStatus
from controller.core.indicators.counter_based import LinkWindows
from controller.core.model import IndicatorName, LinkSample, QosClass, Target, TargetKind
from controller.core.settings import IndicatorSpec
from tests.support.loops.closed_loop import SECOND_NS, TICK_NS, make_spec

ETH0, ETH1 = (Target(TargetKind.LINK, "4026531840", index, f"eth{index}") for index in (1, 2))


def spec_of(name: IndicatorName, min_samples: int = 0) -> IndicatorSpec:
    return replace(make_spec(), name=name, sweet_point=1e6, min_samples=min_samples)


BACKLOG, DROPS = spec_of(IndicatorName.NET_BACKLOG), spec_of(IndicatorName.NET_DROPS)


def tier(
    packets: int, *, drops: int = 0, backlog: int = 0, link: Target = ETH0, name: str = QosClass.LS
) -> LinkSample:
    return LinkSample(link, False, name, packets * 1000, packets, drops, backlog)


def fed(*ticks: list[LinkSample]) -> LinkWindows:
    windows = LinkWindows()
    for number, tiers in enumerate(ticks, 1):
        windows.update(tiers, number * TICK_NS, SECOND_NS, rebase=False)
    return windows


def indicator(windows: LinkWindows, spec: IndicatorSpec) -> Indicator:
    found = windows.indicator("web", spec)
    assert found is not None
    return found


def test_a_host_that_shapes_no_link_has_no_source() -> None:
    windows = fed([], [tier(5, name=QosClass.BE)])
    assert windows.indicator("web", BACKLOG) is None
    assert windows.indicator("web", DROPS) is None


def test_a_link_that_is_removed_is_stale() -> None:
    windows = fed([tier(5)], [tier(9)], [])
    assert indicator(windows, DROPS).status is IndicatorStatus.STALE
    assert indicator(windows, BACKLOG).value is None


def test_the_wait_in_a_full_tier_is_its_backlog_over_its_rate() -> None:
    # 200 packets of 1,000 bytes per tick are 1 MB/s, so a backlog of 20 kB waits 20 ms.
    windows = fed(*([tier(200 * tick, backlog=20_000)] for tick in range(1, 10)))
    found = indicator(windows, BACKLOG)
    assert found.value == pytest.approx(20e6)
    assert found.status is IndicatorStatus.FRESH


def test_a_temporary_backlog_counts_in_proportion_to_its_duration() -> None:
    windows = fed(
        *([tier(200 * tick, backlog=20_000 if tick % 5 == 0 else 0)] for tick in range(1, 20))
    )
    assert indicator(windows, BACKLOG).value == pytest.approx(4e6)


def test_without_a_packet_sent_the_wait_is_the_window() -> None:
    windows = fed(*([tier(50, backlog=3000)] for _ in range(10)))
    assert indicator(windows, BACKLOG).value == SECOND_NS


def test_a_tier_without_packets_is_idle() -> None:
    windows = fed(*([tier(50)] for _ in range(10)))
    for spec in (BACKLOG, DROPS):
        found = indicator(windows, spec)
        assert (found.status, found.value) == (IndicatorStatus.IDLE, None)


def test_drops_are_a_share_of_the_offered_packets_of_the_worst_link() -> None:
    windows = fed(
        *([tier(99 * tick, drops=tick), tier(90 * tick, drops=0, link=ETH1)] for tick in range(9))
    )
    found = indicator(windows, DROPS)
    assert found.value == pytest.approx(0.01)
    assert found.samples == 500


def test_a_drop_among_few_packets_gives_no_value() -> None:
    windows = fed(*([tier(3 * tick, drops=tick // 8)] for tick in range(9)))
    assert indicator(windows, spec_of(IndicatorName.NET_DROPS, 100)).value is None
    assert indicator(windows, spec_of(IndicatorName.NET_DROPS, 100)).status is IndicatorStatus.FRESH
    assert indicator(windows, DROPS).value is not None


def test_a_tier_that_was_created_again_starts_the_window_again() -> None:
    windows = fed(*([tier(99 * tick, drops=tick)] for tick in range(9)), [tier(1, drops=0)])
    assert indicator(windows, DROPS).value is None


def test_counters_are_not_compared_across_a_gap() -> None:
    windows = fed(*([tier(99 * tick, drops=tick)] for tick in range(9)))
    windows.update([tier(10**6, drops=10**5)], 100 * SECOND_NS, SECOND_NS, rebase=True)
    assert indicator(windows, DROPS).value is None
