# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Properties of the reclaimable capacity that is offered to best-effort pods."""

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
import pytest

from controller.config.sections.kubernetes_capacity import ReclaimLimits
from controller.core.model import CgroupId, QosClass, Snapshot, Workload, WorkloadSample
from controller.core.units import NS_PER_SEC
from controller.kube.capacity import NonBestEffortUse, Reclaimable

CAPACITY = 16.0
LIMITS = ReclaimLimits(reserve_ratio=0.1, peak_ns=60 * NS_PER_SEC, rise_ns=20 * NS_PER_SEC)

STEP = st.tuples(
    st.floats(0.2, 15.0),  # seconds since the last step
    st.one_of(st.none(), st.floats(0.0, 2 * CAPACITY)),  # used by other workloads
    st.floats(0.0, 3 * CAPACITY),  # granted: unbounded for pods that bypass the scheduler
    st.one_of(st.none(), st.floats(0.0, CAPACITY)),  # squeezed to
)
Step = tuple[float, float | None, float, float | None]
QUICK = hypothesis_settings(max_examples=100, deadline=None)


def run(steps: list[Step], limits: ReclaimLimits = LIMITS) -> list[tuple[float, bool]]:
    reclaimable, now_ns = Reclaimable(limits), 0
    found = []
    for dt_s, others, granted, squeezed_to in steps:
        now_ns += round(dt_s * NS_PER_SEC)
        amount = reclaimable.update(now_ns, CAPACITY, others, granted, squeezed_to)
        found.append((amount, reclaimable.stale))
    return found


@given(st.lists(STEP, max_size=40))
@QUICK
def test_never_below_what_is_granted_never_above_the_node_and_nothing_when_stale(
    steps: list[Step],
) -> None:
    most = CAPACITY * (1 - LIMITS.reserve_ratio)
    for (amount, stale), (_, _, granted, _) in zip(run(steps), steps, strict=True):
        if stale:
            assert amount == 0
        else:
            assert min(granted, CAPACITY) <= amount <= max(min(granted, CAPACITY), most)


@given(st.lists(STEP, max_size=40), st.lists(st.floats(0, CAPACITY), min_size=40, max_size=40))
@QUICK
def test_more_use_never_leaves_more(steps: list[Step], more: list[float]) -> None:
    heavier = [
        (dt_s, None if others is None else others + extra, granted, squeezed_to)
        for (dt_s, others, granted, squeezed_to), extra in zip(steps, more, strict=False)
    ]
    for (light, _), (heavy, _) in zip(run(steps), run(heavier), strict=True):
        assert heavy <= light + 1e-9


@given(st.lists(STEP, max_size=40), st.floats(0, CAPACITY))
@QUICK
def test_more_grants_never_give_less(steps: list[Step], extra: float) -> None:
    more = [(dt_s, others, granted + extra, to) for dt_s, others, granted, to in steps]
    for (some, _), (all_, _) in zip(run(steps), run(more), strict=True):
        assert all_ >= some


@given(st.lists(STEP, min_size=1, max_size=40), st.floats(0, CAPACITY))
@QUICK
def test_the_capacity_is_at_most_what_a_squeeze_leaves(steps: list[Step], left: float) -> None:
    steps = [*steps, (1.0, 1.0, 0.0, left)]
    assert run(steps)[-1][0] <= left


def steady(seconds: int, others: float | None) -> list[Step]:
    return [(1.0, others, 0.0, None)] * seconds


def test_the_capacity_rises_slowly_and_falls_at_once() -> None:
    usable = CAPACITY * 0.9
    found = [amount for amount, _ in run(steady(200, 4.0) + steady(40, 12.0))]
    assert found[0] == 0
    assert found[20] == pytest.approx((usable - 4) * 0.64, rel=0.05)  # one time constant
    assert found[199] == pytest.approx(usable - 4, rel=0.01)
    assert found[200] < found[199] - 0.5  # in the first second
    assert found[239] == pytest.approx(usable - 12, rel=0.1)


def test_a_peak_lowers_the_capacity_for_a_minute() -> None:
    found = [amount for amount, _ in run(steady(200, 2.0) + steady(30, 10.0) + steady(200, 2.0))]
    assert max(found[230:285]) < 5.0  # within a minute after the peak
    assert found[-1] > 11.0


def test_a_gap_of_ten_seconds_is_bridged_and_a_longer_one_is_stale() -> None:
    found = run(steady(100, 4.0) + steady(10, None))
    assert found[-1] == (found[99][0], False)
    found = run(steady(100, 4.0) + steady(11, None))
    assert found[-1] == (0.0, True)
    again = run(steady(100, 4.0) + steady(11, None) + steady(2, 4.0))
    assert 0 < again[-1][0] < 2  # it rises slowly again


def test_without_data_nothing_is_offered_even_if_granted() -> None:
    assert run([(1.0, None, 3.0, None)]) == [(0.0, True)]


def workload(number: int, qos: QosClass) -> Workload:
    cgroup = CgroupId("v2", number)
    return Workload(f"w{number}", cgroup, f"/w{number}", qos, f"w{number}", "default")


def snapshot(time_s: float, system_s: float | None, **oncpu_s: float) -> Snapshot:
    samples = (
        WorkloadSample(CgroupId("v2", int(name[1:])), oncpu_ns=round(s * NS_PER_SEC))
        for name, s in oncpu_s.items()
    )
    system_ns = None if system_s is None else round(system_s * NS_PER_SEC)
    return Snapshot(
        time_ns=round(time_s * NS_PER_SEC),
        age_ns=0,
        workloads=tuple(samples),
        system_oncpu_ns=system_ns,
    )


def test_all_use_counts_except_that_of_best_effort() -> None:
    workloads = (workload(1, QosClass.LS), workload(2, QosClass.BE), workload(3, QosClass.SYSTEM))
    use = NonBestEffortUse()
    assert use.update(snapshot(1, 5, w1=1, w2=1, w3=1), workloads, NS_PER_SEC) is None
    found = use.update(snapshot(3, 6, w1=2, w2=9, w3=1.5), workloads, NS_PER_SEC)
    assert found == pytest.approx((1 + 1 + 0.5) / 2)


def test_missing_data_and_new_workloads_have_no_rate() -> None:
    workloads = (workload(1, QosClass.LS),)
    use = NonBestEffortUse()
    use.update(snapshot(1, 5), workloads, NS_PER_SEC)
    assert use.update(snapshot(2, 5, w1=50), workloads, NS_PER_SEC) == 0.0
    assert use.update(snapshot(3, None, w1=50), workloads, NS_PER_SEC) is None
    assert use.update(snapshot(4, 5, w1=50), workloads, NS_PER_SEC) is None
    assert use.update(snapshot(5, 5.5, w1=50.5), workloads, NS_PER_SEC) == pytest.approx(1.0)
