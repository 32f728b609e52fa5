# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Who used how much CPU, followed by what is new in a tick."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.core.indicators.counters import CpuUse, SampleDiff
from controller.core.model import CgroupId, WorkloadSample
from tests.closed_loop import TICK_NS

WEB, DB, HOG, CRON = (CgroupId("cpu", number) for number in range(4))
# Who is there in a tick, with what his counter gains; without one; with one that starts anew.
TICKS = st.lists(
    st.dictionaries(
        st.sampled_from([WEB, DB, HOG, CRON]),
        st.one_of(st.none(), st.sampled_from([0, 0, 1_000_003, TICK_NS, -1])),
    ),
    max_size=12,
)


class Followed:
    def __init__(self) -> None:
        self.samples = SampleDiff()
        self.use = CpuUse()

    def tick(self, samples: tuple[WorkloadSample, ...], dt_ns: int = TICK_NS) -> CpuUse:
        self.samples.update(samples)
        self.use.update(self.samples, dt_ns)
        assert self.use.active == {c: cpus for c, cpus in self.use.cpus.items() if cpus > 0}
        return self.use


def test_rates_never_go_negative_and_newcomers_are_based_first() -> None:
    followed = Followed()
    assert followed.tick((WorkloadSample(WEB, oncpu_ns=1000),), 0).cpus == {}
    assert followed.tick((WorkloadSample(WEB, oncpu_ns=1000 + TICK_NS),)).cpus == {WEB: 1.0}
    assert followed.tick((WorkloadSample(WEB, oncpu_ns=5),)).cpus == {WEB: 1.0}
    assert followed.tick((WorkloadSample(WEB),)).cpus == {}


def test_who_stands_still_uses_nothing_and_who_stops_fades() -> None:
    followed = Followed()
    still, first = WorkloadSample(WEB, oncpu_ns=7), WorkloadSample(HOG, oncpu_ns=0)
    after = WorkloadSample(HOG, oncpu_ns=TICK_NS)
    followed.tick((still, first), 0)
    assert followed.tick((still, after)).cpus == {WEB: 0.0, HOG: 1.0}
    for _ in range(10):  # two seconds: the time constant
        use = followed.tick((still, after))
    assert use.cpus[HOG] == pytest.approx(1 / 2.718, rel=0.01)
    for _ in range(1000):
        followed.tick((still, after))
    assert use.cpus == {WEB: 0.0, HOG: 0.0}
    assert use.active == {}


@given(TICKS)
def test_it_is_the_same_whether_or_not_everybody_is_looked_up(
    ticks: list[dict[CgroupId, int | None]],
) -> None:
    """In place, against a stranger who comes with every tick and has everybody looked up."""
    plain, disturbed = Followed(), Followed()
    counts = dict.fromkeys([WEB, DB, HOG, CRON], 0)
    for number, tick in enumerate(ticks):
        for cgroup, gain in tick.items():
            counts[cgroup] = 0 if gain == -1 else counts[cgroup] + (gain or 0)
        samples = tuple(
            WorkloadSample(cgroup, oncpu_ns=None if tick[cgroup] is None else count)
            for cgroup, count in counts.items()
            if cgroup in tick
        )
        stranger = WorkloadSample(CgroupId("cpu", 100 + number), 5)
        cpus = plain.tick(samples).cpus
        others = disturbed.tick((*samples, stranger)).cpus
        assert cpus == {cgroup: others[cgroup] for cgroup in cpus}
        assert cpus.keys() == others.keys() - {c for c in others if c.id >= 100}
