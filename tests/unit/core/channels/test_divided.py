# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The ceilings of shaped links over time."""

from controller.core.channels.divided import LinkCeilingRung
from controller.core.channels.ladder import TickContext
from controller.core.harm.harm_finder import HarmFinder
from controller.core.harm.resource_usage import ResourceUsage
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.knobs.knob_state import KnobState
from controller.core.model import Target, TargetKind
from controller.core.settings import LinkFacts
from controller.core.workload_index import WorkloadIndex
from tests.support.loops.closed_loop import SECOND_NS

LINK = LinkFacts(Target(TargetKind.LINK, "net", 3, "eth0"), 1e9, 1e9)


def test_after_a_release_at_once_nothing_is_held() -> None:
    rung = LinkCeilingRung((LINK,))
    usage = ResourceUsage()

    def set_part(second: int, part: float) -> float | None:
        context = TickContext(
            now_ns=second * SECOND_NS,
            dt_s=1.0,
            resync=False,
            tracker=IndicatorTracker(),
            workload_index=WorkloadIndex([], {}),
            knobs=KnobState(),
            usage=usage,
            harm=HarmFinder(),
        )
        return rung.set_part(part, context)

    assert set_part(1, 0.5) == 0.5
    assert set_part(2, 0.0) == 0.0, "within the hold-off time"
    rung.release()
    assert set_part(3, 0.0) is None
    assert rung.describe() == "network not limited"
