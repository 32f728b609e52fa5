# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of several probes in one sample: each value in its own column and workload."""

from random import Random

from controller.core.model import CgroupId, WorkloadSample
from controller.probes.cgroup_usage import Usage
from controller.probes.join import Join, cache, pressure, traffic, usage
from controller.probes.net import Traffic
from controller.probes.psi import Pressure
from controller.probes.resctrl import CacheUse

ONE, TWO, THREE = (CgroupId("cpu", number) for number in (1, 2, 3))
SAMPLES = (
    WorkloadSample(ONE, oncpu_ns=5, cycles=6, llc_occupancy_bytes=7),
    WorkloadSample(TWO, oncpu_ns=8, throttled_ns=9),
)


def test_each_value_is_put_into_its_field() -> None:
    sent = traffic({TWO: Traffic(1, 2, 3, 4), THREE: Traffic(9, 9, 9, 9)})
    stalled = pressure({ONE: Pressure(10, None, 30)})
    used = usage({ONE: Usage(40, None), TWO: Usage(50, 60)})
    held = cache({ONE: CacheUse(7, 70)})
    assert Join()(SAMPLES, None, sent, stalled, used, held) == (
        SAMPLES[0]._replace(
            psi_cpu_some_ns=10, psi_io_some_ns=30, memory_bytes=40, memory_bandwidth_bytes=70
        ),
        SAMPLES[1]._replace(
            tx_bytes=1, rx_bytes=2, tx_packets=3, rx_packets=4, memory_bytes=50, io_bytes=60
        ),
    )


def test_without_the_other_probes_the_samples_stay_as_they_are() -> None:
    assert Join()(SAMPLES, None, traffic({}), pressure({})) == SAMPLES
    assert Join()((), None, traffic({ONE: Traffic(1, 2, 3, 4)})) == ()


def test_an_unchanged_sample_is_the_same_object() -> None:
    join = Join()
    before = join(SAMPLES, None, traffic({ONE: Traffic(1, 1, 1, 1), TWO: Traffic(2, 2, 2, 2)}))
    after = join(SAMPLES, None, traffic({ONE: Traffic(1, 1, 1, 1), TWO: Traffic(3, 2, 2, 2)}))
    assert after[0] is before[0]
    assert after[1] == before[1]._replace(tx_bytes=3)


def test_added_and_removed_workloads_change_no_other_sample() -> None:
    join = Join()
    rows = traffic({ONE: Traffic(1, 1, 1, 1), TWO: Traffic(2, 2, 2, 2), THREE: Traffic(3, 3, 3, 3)})
    one, two = join(SAMPLES, None, rows)
    three = WorkloadSample(THREE, oncpu_ns=1)
    after = join((three, SAMPLES[1]), None, rows)
    assert after[0] == three._replace(tx_bytes=3, rx_bytes=3, tx_packets=3, rx_packets=3)
    assert after[1] is two
    assert join(SAMPLES, None, rows) == (one, two)


def test_a_table_that_is_no_longer_given_leaves_no_values() -> None:
    join = Join()
    sent, used = traffic({ONE: Traffic(1, 1, 1, 1)}), usage({ONE: Usage(40, 50)})
    assert join(SAMPLES, None, sent, used)[0].memory_bytes == 40
    assert join(SAMPLES, None, sent)[0].memory_bytes is None
    assert join(SAMPLES, None) == SAMPLES


def test_only_samples_reported_as_changed_are_compared() -> None:
    join = Join()
    rows = {ONE: Traffic(1, 1, 1, 1), TWO: Traffic(2, 2, 2, 2)}
    one, two = join(SAMPLES, None, traffic(rows))
    busier = SAMPLES[0]._replace(oncpu_ns=6)
    rows[TWO] = Traffic(2, 3, 2, 2)
    after = join((busier, SAMPLES[1]), [ONE], traffic(rows, [TWO]))
    assert after == (one._replace(oncpu_ns=6), two._replace(rx_bytes=3))
    again = join((busier, SAMPLES[1]), [], traffic(rows, [THREE]))
    assert again[0] is after[0] and again[1] is after[1]


def test_a_new_table_is_put_into_all_samples_whatever_changed() -> None:
    join = Join()
    sent = traffic({ONE: Traffic(1, 1, 1, 1)}, [])
    assert join(SAMPLES, None, sent)[1].memory_bytes is None
    assert join(SAMPLES, [], sent, usage({TWO: Usage(50, 60)}, []))[1].memory_bytes == 50
    assert join(SAMPLES, [], sent, usage({}, []))[1].memory_bytes is None


def test_the_incremental_result_equals_a_full_join() -> None:
    random = Random(7)
    cgroups = [CgroupId("cpu", number) for number in range(20)]
    samples = [WorkloadSample(cgroup, oncpu_ns=0) for cgroup in cgroups]
    sent: dict[CgroupId, Traffic] = {}
    stalled = {cgroups[0]: Pressure(0, 0, 0)}
    join = Join()
    join(samples, None, pressure(stalled))
    for count in range(200):
        busy, talks, waits = (random.sample(cgroups, 2) for _ in range(3))
        for cgroup in busy:
            samples[cgroup.id] = WorkloadSample(cgroup, oncpu_ns=count)
        sent |= {cgroup: Traffic(count, 1, 1, 1) for cgroup in talks}
        stalled |= {cgroup: Pressure(count, 1, 1) for cgroup in waits}
        if count % 50 == 49:
            sent.clear()
        quick = join(samples, busy, traffic(sent, talks), pressure(stalled, waits))
        assert quick == Join()(samples, None, traffic(sent), pressure(stalled))
