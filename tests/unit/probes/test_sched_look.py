# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A look at the arrays of the sched probe finds what an indicator above its sweet point shows."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from controller.core.indicators.measurement import BUCKETS, arrival_delay_ns, quantile_ns
from controller.core.looks import Quiet, RatioLimit, WaitLimit
from controller.core.model import CgroupId
from controller.probes.sched_look import WaitLook
from controller.probes.slots import Member, View
from tests.support.histogram import index_of

WEB, API = CgroupId("cpu", 1), CgroupId("cpu", 2)
SECOND_NS = 10**9
SWEET_NS = 2e6
FAST, SLOW = index_of(100_000), index_of(5_000_000)
ONCPU, INFLICTED, WAITS = 0, 2, 3


def quiet(share: float = 0.005, ratio: float = 0.5, *, by_time: bool = False) -> Quiet:
    limits = [WaitLimit(each, SWEET_NS, share, SECOND_NS, by_time) for each in (API, WEB)]
    bounds = [RatioLimit(each, ratio, 5e6) for each in (API, WEB)]
    return Quiet(None, SECOND_NS, tuple(limits), tuple(bounds))


class Counted:
    """Two services on two CPUs; the second one has no waits."""

    def __init__(self) -> None:
        self.accounts = np.zeros((6, 2, 6), np.int64)
        self.latencies = np.zeros((4, 2, BUCKETS), np.uint32)
        self.totals = np.zeros((6, 6), np.int64)
        self.waits = np.zeros((4, BUCKETS), np.uint32)
        self.look = WaitLook(self.accounts, self.latencies, self.totals, self.waits)
        self.view = View(
            (Member(WEB, 4, 2), Member(API, 3, 0), Member(CgroupId("cpu", 3), 5, None))
        )
        self.now_ns = 0
        self.tick()

    def count(self, bucket: int, number: int, cpu: int = 0) -> None:
        self.latencies[2, cpu, bucket] += np.uint32(number)
        self.accounts[4, cpu, WAITS] += number

    def run(self, oncpu_ns: int, inflicted_ns: int) -> None:
        self.accounts[4, 1, [ONCPU, INFLICTED]] += [oncpu_ns, inflicted_ns]

    def tick(self, after_ns: int = SECOND_NS) -> None:
        self.now_ns += after_ns
        self.totals[:] = self.accounts.sum(axis=1)
        self.waits[:] = self.latencies.sum(axis=1, dtype=np.uint32)
        self.look.rebase(self.now_ns)

    def exceeds(self, share: float = 0.005, ratio: float = 0.5, *, by_time: bool = False) -> bool:
        return self.look.exceeds(self.view, quiet(share, ratio, by_time=by_time))

    def left(self, *, by_time: bool = False) -> float:
        """Return what the last limit leaves, the one of WEB."""
        rows, left = self.look.left(self.view, quiet(by_time=by_time))
        assert rows.records.tolist() == [0, 2]
        assert rows.sweet_ns.tolist() == [SWEET_NS] * 2
        assert rows.by_time.tolist() == [by_time] * 2
        return float(left[1])


def test_nothing_has_exceeded_a_limit_right_after_a_tick() -> None:
    counted = Counted()
    counted.count(SLOW, 1000)
    counted.run(10**8, 10**9)
    counted.tick()
    assert not counted.exceeds()


def test_long_waits_exceed_their_share() -> None:
    counted = Counted()
    counted.count(FAST, 199)
    assert not counted.exceeds()
    counted.count(SLOW, 1, cpu=1)
    assert not counted.exceeds()  # one in 200
    counted.count(SLOW, 1)
    assert counted.exceeds()


def test_a_window_at_the_rate_of_the_last_tick_allows_as_much() -> None:
    counted = Counted()
    counted.count(FAST, 2000)
    counted.tick()
    counted.count(SLOW, 10)
    assert not counted.exceeds()
    counted.count(SLOW, 1)
    assert counted.exceeds()


def test_a_wait_counts_from_the_bucket_of_the_sweet_point_on() -> None:
    counted = Counted()
    counted.count(index_of(int(SWEET_NS)) - 1, 1)
    assert not counted.exceeds()
    counted.count(index_of(int(SWEET_NS)), 1)
    assert counted.exceeds()


def test_one_long_wait_exceeds_a_part_of_the_time() -> None:
    counted = Counted()
    counted.count(FAST, 100_000)
    counted.count(index_of(6_000_000), 1)
    assert not counted.exceeds(by_time=True)  # 4.5 ms beyond, of 5
    counted.count(index_of(4_000_000), 1)
    assert counted.exceeds(by_time=True)


def test_a_starved_service_has_few_waits_and_exceeds_a_part_of_the_time() -> None:
    counted = Counted()
    counted.count(FAST, 100_000)
    counted.tick()
    counted.count(index_of(100_000_000), 1)
    assert not counted.exceeds()
    assert counted.exceeds(0.05, by_time=True)


def test_a_service_exceeds_its_ratio() -> None:
    counted = Counted()
    counted.run(10**6, 10**6)
    assert not counted.exceeds()
    counted.run(10**6, 3 * 10**6)
    assert counted.exceeds()


def test_a_service_that_hardly_runs_exceeds_no_ratio() -> None:
    counted = Counted()
    counted.run(1_000_000, 3_900_000)
    assert not counted.exceeds()
    counted.run(100_000, 0)
    assert counted.exceeds()


def test_the_buckets_of_the_kernel_wrap_around() -> None:
    counted = Counted()
    counted.latencies[2, 0, SLOW] = np.uint32(2**32 - 1)
    counted.tick()
    counted.latencies[2, 0, SLOW] = np.uint32(0)
    assert counted.exceeds()
    counted.tick()
    assert not counted.exceeds()


def test_limits_of_what_is_not_measured_are_left_out() -> None:
    counted = Counted()
    counted.view = View(())
    counted.count(SLOW, 100)
    assert not counted.exceeds()


def test_twice_the_limit_of_a_look_is_left_after_a_tick() -> None:
    counted = Counted()
    assert counted.left() == 0
    counted.count(FAST, 2000)
    counted.tick()
    assert counted.left() == 20
    assert counted.left(by_time=True) == 10e6


def test_what_a_look_saw_is_not_left() -> None:
    counted = Counted()
    counted.count(FAST, 2000)
    counted.tick()
    counted.count(SLOW, 10)
    assert not counted.exceeds()
    assert counted.left() == 10


def test_more_is_left_for_more_waits() -> None:
    counted = Counted()
    counted.count(FAST, 2000)
    counted.tick()
    counted.count(FAST, 4000)
    counted.count(SLOW, 15)
    assert not counted.exceeds()
    assert counted.left() == pytest.approx(2 * 0.005 * 4015 - 15)


def test_rows_stay_the_same_while_the_limits_do() -> None:
    counted = Counted()
    same = quiet()
    before, _ = counted.look.left(counted.view, same)
    counted.tick()
    after, _ = counted.look.left(counted.view, same)
    assert after is before
    other, _ = counted.look.left(counted.view, quiet(by_time=True))
    assert other is not before


waits = st.dictionaries(st.integers(0, BUCKETS - 1), st.integers(1, 500), max_size=6)
sweet_points = st.floats(10e3, 50e6)


@given(waits, sweet_points, st.sampled_from([0.5, 0.95, 0.99]))
@pytest.mark.parametrize("before", [0, 300])
def test_a_percentile_above_its_sweet_point_exceeds_the_limit(
    before: int, found: dict[int, int], sweet_ns: float, quantile: float
) -> None:
    counted = Counted()
    total = sum(found.values())
    counted.count(FAST, min(before, total))  # a rate of the last tick no higher than now
    counted.tick()
    for bucket, number in found.items():
        counted.count(bucket, number)
    buckets = [found.get(each, 0) for each in range(BUCKETS)]
    value = quantile_ns(buckets, quantile)
    limit = WaitLimit(WEB, sweet_ns, 0.5 * (1 - quantile), SECOND_NS, by_time=False)
    exceeds = counted.look.exceeds(counted.view, Quiet(None, SECOND_NS, (limit,)))
    assert exceeds or value is None or value <= sweet_ns


@given(waits, sweet_points)
def test_a_delay_above_its_sweet_point_exceeds_the_limit(
    found: dict[int, int], sweet_ns: float
) -> None:
    counted = Counted()
    for bucket, number in found.items():
        counted.count(bucket, number)
    buckets = [found.get(each, 0) for each in range(BUCKETS)]
    limit = WaitLimit(WEB, sweet_ns, 0.005, SECOND_NS, by_time=True)
    exceeds = counted.look.exceeds(counted.view, Quiet(None, SECOND_NS, (limit,)))
    assert exceeds or arrival_delay_ns(buckets, SECOND_NS, 0.99) <= sweet_ns
