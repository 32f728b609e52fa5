# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Rungs: what a release leaves, and when the limit of the memory guard can be lowered."""

import pytest

from controller.core.channels.divided import LinkCeilingRung, MemoryHighRung
from controller.core.channels.io_max import IoMaxRung
from controller.core.channels.ladder import (
    MemoryLimitRung,
    Rung,
    SharedQuotaRung,
    TickContext,
)
from controller.core.channels.stepped import CacheWaysRung, IoWeightRung, MbaRung
from controller.core.harm.harm_finder import HarmFinder
from controller.core.harm.resource_usage import ResourceUsage
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.knobs.knob_state import KnobState
from controller.core.model import CgroupId, Knob, KnobReading, KnobValue, Target, TargetKind
from controller.core.settings import DiskFacts, ResctrlFacts
from controller.core.tuning import DEFAULT_LIMITS
from controller.core.workload_index import WorkloadIndex

RESCTRL = ResctrlFacts((0,))
RUNGS = (
    *(
        CacheWaysRung(RESCTRL),
        MbaRung(RESCTRL),
        SharedQuotaRung(),
        LinkCeilingRung(()),
        MemoryLimitRung(),
    ),
    *(MemoryHighRung(1 << 30), IoWeightRung(), IoMaxRung((DiskFacts("8:0", 1e8, 1e8),))),
)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: type(rung).__name__)
def test_a_rung_that_is_released_is_free(rung: Rung) -> None:
    rung.part = 0.5
    rung.release()
    assert rung.part == 0.0


def context(scope: str, *, guarded: bool = True, known: bool = True) -> TickContext:
    target = Target(TargetKind.CGROUP, scope, 9, "/batch")
    knobs = KnobState()
    if known:
        knobs.update((KnobReading(target, Knob.MEMORY_MAX, KnobValue("max")),), (), True, 0)
    return TickContext(
        now_ns=0,
        dt_s=1.0,
        resync=False,
        tracker=IndicatorTracker(),
        workload_index=WorkloadIndex([], {}),
        knobs=knobs,
        usage=ResourceUsage(),
        harm=HarmFinder(),
        guarded=frozenset({CgroupId(scope, 9)} if guarded else ()),
    )


@pytest.mark.parametrize(
    ("tick", "usable"),
    [
        (context("memory"), True),
        (context("v2"), False),  # which has memory.high
        (context("memory", guarded=False), False),
        (context("memory", known=False), False),
    ],
)
def test_only_a_limit_of_v1_that_the_guard_moves_is_lowered(
    tick: TickContext, usable: bool
) -> None:
    assert MemoryLimitRung().usable(tick) is usable


def test_it_says_how_much_goes() -> None:
    rung, tick = MemoryLimitRung(), context("memory")
    limits = tick.workload_index.limits
    assert limits[rung.knob] == DEFAULT_LIMITS[Knob.MEMORY_HIGH], "it moves as on v2"
    assert (rung.set_part(0.25, tick), rung.part) == (0.25, 0.25)
    assert rung.describe() == "page cache limited by 25%"
    assert not rung.changes(tick)
    assert rung.set_part(0.0, tick) is None
    rung.set_part(1.0, tick)
    rung.release()
    assert (rung.part, rung.describe()) == (0.0, "page cache not limited")
