# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Several probes' numbers in one sample: nothing moves to another column or workload."""

from controller.model import CgroupId, WorkloadSample
from controller.probes.join import cache, join, pressure, traffic, usage
from controller.probes.net import Traffic
from controller.probes.psi import Pressure
from controller.probes.resctrl import CacheUse
from controller.probes.usage import Usage

ONE, TWO, THREE = (CgroupId("cpu", number) for number in (1, 2, 3))
SAMPLES = (
    WorkloadSample(ONE, oncpu_ns=5, cycles=6, llc_occupancy_bytes=7),
    WorkloadSample(TWO, oncpu_ns=8, throttled_ns=9),
)


def test_each_number_finds_its_place() -> None:
    sent = traffic({TWO: Traffic(1, 2, 3, 4), THREE: Traffic(9, 9, 9, 9)})
    stalled = pressure({ONE: Pressure(10, None, 30)})
    used = usage({ONE: Usage(40, None), TWO: Usage(50, 60)})
    held = cache({ONE: CacheUse(7, 70)})
    assert join(SAMPLES, sent, stalled, used, held) == (
        SAMPLES[0]._replace(
            psi_cpu_some_ns=10, psi_io_some_ns=30, memory_bytes=40, memory_bandwidth_bytes=70
        ),
        SAMPLES[1]._replace(
            tx_bytes=1, rx_bytes=2, tx_packets=3, rx_packets=4, memory_bytes=50, io_bytes=60
        ),
    )


def test_without_the_other_probes_the_samples_stay_as_they_are() -> None:
    assert join(SAMPLES, traffic({}), pressure({})) == SAMPLES
    assert join((), traffic({ONE: Traffic(1, 2, 3, 4)})) == ()
