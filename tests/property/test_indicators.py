# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""For all counters an indicator has a possible value or none."""

from collections.abc import Sequence
from dataclasses import replace
import math

from hypothesis import given
from hypothesis import strategies as st

from controller.core.decision import Indicator, IndicatorStatus
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.indicators.windows import DeltaWindow
from controller.core.model import (
    CgroupId,
    IndicatorName,
    LinkSample,
    QosClass,
    ServiceReading,
    Snapshot,
    Target,
    TargetKind,
    Workload,
    WorkloadSample,
)
from controller.core.workload_index import WorkloadIndex
from tests.support.loops.closed_loop import SECOND_NS, TICK_NS, make_settings, make_spec

WEB = CgroupId("cpu", 1)
ETH0 = Target(TargetKind.LINK, "4026531840", 1, "eth0")
RATIOS = {
    IndicatorName.WAIT_RATIO,
    IndicatorName.PSI_CPU,
    IndicatorName.PSI_MEMORY,
    IndicatorName.PSI_IO,
    IndicatorName.NET_DROPS,
}
COUNTERS = [
    name
    for name in WorkloadSample._fields
    if name not in ("cgroup", "runq_histogram", "llc_occupancy_bytes", "memory_bytes")
]

counts = st.one_of(st.none(), st.integers(0, 2**63))
samples = st.builds(WorkloadSample, st.just(WEB), **dict.fromkeys(COUNTERS, counts))
links = st.builds(
    LinkSample,
    st.just(ETH0),
    st.booleans(),
    st.just(QosClass.LS),
    *(st.integers(0, 2**40) for _ in range(4)),
)


@st.composite
def ticks(draw: st.DrawFn) -> list[tuple[int, Snapshot, bool]]:
    now_ns, made = 0, []
    for _ in range(draw(st.integers(1, 12))):
        dt_ns = draw(st.sampled_from([TICK_NS, TICK_NS, TICK_NS, SECOND_NS, 60 * SECOND_NS]))
        now_ns += dt_ns
        figure = draw(st.one_of(st.none(), st.floats(0, 1e12)))
        snapshot = Snapshot(
            time_ns=now_ns,
            age_ns=draw(st.sampled_from([0, 10**10, None])),
            workloads=tuple(draw(st.lists(samples, max_size=1))),
            links=tuple(draw(st.lists(links, max_size=2))),
            services=(ServiceReading("web", figure, draw(st.sampled_from([0, None]))),),
            pressure_ns=draw(st.sampled_from([now_ns, now_ns - now_ns % SECOND_NS, None])),
        )
        made.append((dt_ns, snapshot, draw(st.booleans())))
    return made


@given(st.sampled_from(IndicatorName), ticks())
def test_every_indicator_has_a_possible_value(
    name: IndicatorName, made: Sequence[tuple[int, Snapshot, bool]]
) -> None:
    spec = replace(make_spec(), name=name, sweet_point=1.0, resolution=0.001)
    profile = replace(make_settings().profiles["default"], indicators=(spec,))
    workload = Workload("web", WEB, "/web", QosClass.LS, "web", "default")
    workload_index = WorkloadIndex([workload], {"default": profile})
    tracker = IndicatorTracker()
    for dt_ns, snapshot, rebase in made:
        longest_gap_ns = 0 if rebase else 10**12
        tracker.update(snapshot, workload_index, dt_ns, 2 * TICK_NS, longest_gap_ns)
        found = tracker.indicator(workload_index.services["web"], spec)
        if found is not None:
            check(found)


def check(found: Indicator) -> None:
    if found.value is None:
        return
    assert found.status is IndicatorStatus.FRESH
    assert math.isfinite(found.value)
    assert found.value >= 0.0
    assert found.samples >= 0
    if found.name in RATIOS:
        assert found.value <= 1.0


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=2, max_size=40))
def test_a_delta_is_what_was_added_within_the_window(steps: list[tuple[int, bool]]) -> None:
    """Each step adds to the counter, or resets it to what it would have added."""
    window = DeltaWindow()
    window.keep_for(5 * TICK_NS)
    count = 0
    added: list[int] = []
    for tick, (step, reset) in enumerate(steps):
        restarted = reset and step < count
        count = step if restarted else count + step
        added = [0] if restarted or not added else [*added, step]
        window.push(tick * TICK_NS, (count,))
        delta = window.read(5 * TICK_NS)
        if len(added) == 1:
            assert delta is None
        else:
            assert delta is not None
            since = min(5, len(added) - 1)
            assert (delta.span_ns, delta.counts[0]) == (since * TICK_NS, sum(added[-since:]))
