# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the history tells about a service."""

import pytest

from controller.agent.history.incidents import Coverage, Suffering
from controller.agent.history.records import Line, Moment
from controller.agent.history.service_story import ServiceStory
from controller.core.decision import IndicatorStatus, LoopReport
from controller.core.model import Channel, IndicatorName, Mode

S = 10**9
NAME = IndicatorName.RUNQ_P99


def moment(second: int, deviation: float) -> Line:
    loop = LoopReport(
        service="web",
        indicator=NAME,
        channel=Channel.CPU,
        status=IndicatorStatus.FRESH,
        value=4e6,
        sweet_point=2e6,
        deviation=deviation,
        filtered_deviation=deviation,
        demand=0.0,
        selected=True,
    )
    record = Moment(time_ns=second * S, mode=Mode.ENFORCE, loops=(loop,), suffered=())
    return Line(second * S, record)


@pytest.mark.parametrize(("again", "begins"), [(31, [1]), (32, [1, 32]), (61, [1, 61])])
def test_a_service_that_suffers_again_after_half_a_minute_has_two_incidents(
    again: int, begins: list[int]
) -> None:
    """Also without a record in between: of a quiet time there is one a minute."""
    story = ServiceStory("web", Coverage(since_ns=0, until_ns=10**12))
    story.read(iter([moment(1, 1.0), moment(again, 2.0)]))
    found = [each for each in story.incidents if isinstance(each, Suffering)]
    assert [each.began_ns // S for each in found] == begins
    assert len(found) == len(story.incidents)
    assert found[-1].effect.highest == 2.0
    assert found[0].effect.highest == (2.0 if len(begins) == 1 else 1.0)
