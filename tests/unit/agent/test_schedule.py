# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""When a look is due, and whether it makes a tick: reasons and their order."""

from collections.abc import Sequence
from itertools import pairwise, product

import pytest

from controller.agent.schedule import Schedule, Seen, reason_to_tick
from controller.core.looks import Quiet, Strain, TickReason
from tests.support.loops.closed_loop import SECOND_NS, TICK_NS

QUIET = Quiet(None, SECOND_NS)
RECENT = Seen(TICK_NS, TICK_NS, TICK_NS)


def reason(quiet: Quiet = QUIET, seen: Seen = RECENT, waits: bool = False) -> TickReason | None:
    return reason_to_tick(quiet, seen, lambda _: waits)


def test_a_tick_is_left_out_if_nothing_came_since_the_last_one() -> None:
    assert reason() is None
    assert reason(seen=RECENT._replace(since_tick_ns=SECOND_NS - 1)) is None


def test_each_of_these_makes_a_tick() -> None:
    assert reason(Quiet()) is TickReason.START
    assert reason(seen=RECENT._replace(since_tick_ns=SECOND_NS)) is TickReason.INTERVAL
    assert reason(seen=RECENT._replace(since_look_ns=2 * TICK_NS + 1)) is TickReason.LATE
    assert reason(waits=True) is TickReason.WAITS
    for event in TickReason:
        assert reason(seen=RECENT._replace(event=event)) is event
        assert reason(Quiet(event)) is event


def test_a_tick_is_left_out_only_if_all_conditions_hold() -> None:
    found = [
        reason(Quiet(active, SECOND_NS), Seen(TICK_NS, since_tick, since_look, event), waits)
        for active, since_tick, since_look, event, waits in product(
            (None, TickReason.ACTIVE),
            (TICK_NS, SECOND_NS),
            (TICK_NS, SECOND_NS),
            (None, TickReason.FIGURE),
            (False, True),
        )
    ]
    assert found[0] is None
    assert None not in found[1:]


@pytest.mark.parametrize(
    ("due_in_ticks", "wanted_in_ticks"),
    [(0.4, 0.4), (0.25, 0.25), (0.1, 0.25), (0.0, 0.25), (-0.2, 0.25), (2.7, 0.5)],
)
def test_the_look_after_a_tick_that_the_kernel_caused_comes_soon(
    due_in_ticks: float, wanted_in_ticks: float
) -> None:
    schedule = Schedule(SECOND_NS + round(due_in_ticks * TICK_NS))
    schedule.pass_woken(SECOND_NS, TICK_NS, strain=Strain.WELL)
    assert schedule.due_ns == SECOND_NS + round(wanted_in_ticks * TICK_NS)
    assert schedule.was_woken
    schedule.pass_due(2 * TICK_NS, TICK_NS, strain=Strain.WELL)
    assert schedule.due_ns == SECOND_NS + round((wanted_in_ticks + 2) * TICK_NS)
    assert not schedule.was_woken


def dues(found: Sequence[int], *, woken: bool = False) -> list[float]:
    """Return when looks are due, in eighths of a tick, if they find services like this."""
    schedule = Schedule(SECOND_NS)
    schedule.pass_due(TICK_NS, TICK_NS, strain=Strain.WELL)
    if woken:
        schedule.pass_woken(SECOND_NS, TICK_NS, strain=Strain(found[0]))
        found = found[1:]
    times = [schedule.due_ns]
    for each in found:
        schedule.pass_due(TICK_NS, TICK_NS, strain=Strain(each))
        times.append(schedule.due_ns)
    return [(each - SECOND_NS) * 8 / TICK_NS for each in times]


def test_two_ticks_come_early_after_the_first_one_that_finds_a_service_worse() -> None:
    assert dues([1] * 5) == [8, 9, 10, 18, 26, 34]
    assert dues([2] * 5, woken=True) == [1, 2, 10, 18, 26]
    assert dues([1] * 6 + [2] * 3) == [8, 9, 10, 18, 26, 34, 42, 43, 44, 52]


def test_the_same_strain_causes_early_ticks_once_in_five() -> None:
    assert dues([0, 1, 0, 0, 1]) == [8, 16, 17, 25, 33, 41]
    assert dues([1, 2, 2, 1, 2, 2]) == [8, 9, 10, 11, 19, 27, 35]


def test_a_service_near_its_sweet_point_needs_the_next_tick_when_it_is_due() -> None:
    for strain in (Strain.NEAR, Strain.HIGH):
        near = Quiet(None, SECOND_NS, strain=strain)
        assert reason(near) is TickReason.NEAR
        assert reason(near, RECENT._replace(woken=True)) is None
        assert reason(near, RECENT._replace(woken=True), waits=True) is TickReason.WAITS


@pytest.mark.parametrize("woken", [False, True])
def test_early_ticks_are_at_most_four_in_five(woken: bool) -> None:
    """Whatever they find, but for four at the beginning."""
    for found in product(range(3), repeat=7):
        times = dues(found, woken=woken)
        early = sum(later - sooner < 4 for sooner, later in pairwise(times))
        assert early <= 4 + (times[-1] - times[0]) / 8 * 4 / 5
