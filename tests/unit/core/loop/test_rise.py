# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The pace of a rise: patience, doubling, reaction."""

import pytest

from controller.core.loop.channel_pace import RisePace

DT_S = 0.2


def run(pace: RisePace, deviation: float | None, seconds: float) -> list[float]:
    """Return the speeds of the ticks of *seconds* at *deviation*."""
    return [pace.update(deviation, DT_S) for _ in range(round(seconds / DT_S))]


def test_a_service_that_does_not_react_has_the_whole_range_within_seconds() -> None:
    pace = RisePace()
    assert not any(run(pace, 0.4, 2.8))
    speeds = run(pace, 0.4, 12.0)
    assert speeds == sorted(speeds)
    assert speeds[11] == pytest.approx(2 * speeds[1], rel=0.2)
    assert sum(speeds) * DT_S >= 1.0


@pytest.mark.parametrize("deviation", [None, -1.0, 0.0, 0.2])
def test_a_service_that_hardly_suffers_does_not_raise_the_demand(deviation: float | None) -> None:
    assert not any(run(RisePace(), deviation, 60.0))


def test_where_the_service_reacts_the_loops_decide_again() -> None:
    pace = RisePace()
    assert run(pace, 1.0, 6.0)[-1] > 0.0
    falling = run(pace, 0.6, 3.0)
    assert falling[-1] == 0.0
    # What it suffers now is compared with the lower figure: without a further fall it goes on.
    assert run(pace, 0.6, 6.0)[-1] > 0.0


def test_a_time_without_data_begins_a_new_run() -> None:
    pace = RisePace()
    assert run(pace, 1.0, 6.0)[-1] > 0.0
    assert run(pace, None, 0.2) == [0.0]
    assert not any(run(pace, 1.0, 2.8))
