# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CPU use of workloads, computed from the differences between ticks."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.core.indicators.counters import CpuUse, SampleDiff, rate
from controller.core.model import CgroupId, WorkloadSample
from tests.support.loops.closed_loop import TICK_NS

WEB, DB, HOG, CRON = (CgroupId("cpu", number) for number in range(4))
# Per tick: the increase of the counter of each workload; None: no counter; -1: reset to zero.
TICKS = st.lists(
    st.dictionaries(
        st.sampled_from([WEB, DB, HOG, CRON]),
        st.one_of(st.none(), st.sampled_from([0, 0, 1_000_003, TICK_NS, -1])),
    ),
    max_size=12,
)


class Bench:
    """A sample diff and the CPU use that is computed from it."""

    def __init__(self) -> None:
        self.samples = SampleDiff()
        self.use = CpuUse()

    def tick(self, samples: tuple[WorkloadSample, ...], dt_ns: int = TICK_NS) -> CpuUse:
        self.samples.update(samples)
        self.use.update(self.samples, dt_ns)
        assert self.use.active == {c: cpus for c, cpus in self.use.cpus.items() if cpus > 0}
        return self.use


def test_rates_are_never_negative_and_new_counters_have_no_rate() -> None:
    bench = Bench()
    assert bench.tick((WorkloadSample(WEB, oncpu_ns=1000),), 0).cpus == {}
    assert bench.tick((WorkloadSample(WEB, oncpu_ns=1000 + TICK_NS),)).cpus == {WEB: 1.0}
    assert bench.tick((WorkloadSample(WEB, oncpu_ns=5),)).cpus == {WEB: 1.0}
    assert bench.tick((WorkloadSample(WEB),)).cpus == {}


def test_a_rate_needs_two_counts_that_grow() -> None:
    assert rate(10, 10 + TICK_NS, TICK_NS) == 1.0
    assert rate(10, 10, 0) is None
    assert rate(10, 0, TICK_NS) is None
    assert rate(None, 10, TICK_NS) is None
    assert rate(10, None, TICK_NS) is None


def test_the_use_of_a_workload_that_stops_decays() -> None:
    bench = Bench()
    still, first = WorkloadSample(WEB, oncpu_ns=7), WorkloadSample(HOG, oncpu_ns=0)
    after = WorkloadSample(HOG, oncpu_ns=TICK_NS)
    bench.tick((still, first), 0)
    assert bench.tick((still, after)).cpus == {WEB: 0.0, HOG: 1.0}
    for _ in range(10):  # 2 s, the time constant
        use = bench.tick((still, after))
    assert use.cpus[HOG] == pytest.approx(1 / 2.718, rel=0.01)
    for _ in range(1000):
        bench.tick((still, after))
    assert use.cpus == {WEB: 0.0, HOG: 0.0}
    assert use.active == {}


def test_what_a_workload_uses_in_two_ticks_lasts() -> None:
    bench = Bench()
    counts = [0, 0, TICK_NS, TICK_NS + TICK_NS // 2, 2 * TICK_NS, 2 * TICK_NS, 3 * TICK_NS]
    found = [bench.tick((WorkloadSample(HOG, oncpu_ns=count),)).lasting(HOG) for count in counts]
    assert found == [0.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0]
    assert bench.tick(()).lasting(HOG) == 0.0


@given(TICKS)
def test_the_use_is_the_same_with_and_without_a_lookup_by_cgroup(
    ticks: list[dict[CgroupId, int | None]],
) -> None:
    """A new cgroup in every tick forces the lookup; without one, samples are compared in place."""
    plain, disturbed = Bench(), Bench()
    counts = dict.fromkeys([WEB, DB, HOG, CRON], 0)
    for number, tick in enumerate(ticks):
        for cgroup, increase in tick.items():
            counts[cgroup] = 0 if increase == -1 else counts[cgroup] + (increase or 0)
        samples = tuple(
            WorkloadSample(cgroup, oncpu_ns=None if tick[cgroup] is None else count)
            for cgroup, count in counts.items()
            if cgroup in tick
        )
        new = WorkloadSample(CgroupId("cpu", 100 + number), 5)
        cpus = plain.tick(samples).cpus
        others = disturbed.tick((*samples, new)).cpus
        assert cpus == {cgroup: others[cgroup] for cgroup in cpus}
        assert cpus.keys() == others.keys() - {c for c in others if c.id >= 100}
