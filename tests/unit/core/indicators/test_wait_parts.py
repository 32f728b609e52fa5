# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What made a service wait besides best-effort work."""

import pytest

from controller.core.decision import PartKind
from controller.core.indicators.counters import SampleDiff
from controller.core.indicators.wait_parts import WaitParts
from controller.core.model import CgroupId, QosClass, Workload, WorkloadSample
from controller.core.workload_index import WorkloadIndex
from tests.support.loops.closed_loop import make_settings

WEB, DB, JOB, BACKUP = (CgroupId("cpu", number) for number in (1, 2, 3, 4))
SECOND_NS = 10**9


def workload(name: str, cgroup: CgroupId, qos: QosClass) -> Workload:
    return Workload(name, cgroup, f"/{name}", qos, name, "default")


def index(*workloads: Workload) -> WorkloadIndex:
    return WorkloadIndex(workloads, make_settings().profiles)


def sample(seconds: float) -> WorkloadSample:
    """Return the sample of a service that waits 10 ways a second: 1 for the host, 2 for itself."""
    unit = round(seconds * SECOND_NS / 10)
    return WorkloadSample(
        WEB,
        wait_total_ns=10 * unit,
        wait_inflicted_ns=4 * unit,
        wait_host_ns=unit,
        throttled_ns=3 * unit,
    )


def test_parts_by_who_caused_them() -> None:
    present = index(
        workload("web", WEB, QosClass.LS),
        workload("db", DB, QosClass.LS),
        workload("job", JOB, QosClass.BE),
    )
    parts, samples = WaitParts(1.0), SampleDiff()
    samples.update((sample(0),))
    samples.update((sample(1),))
    gains = [
        (WEB, DB, True, 100_000_000),
        (WEB, JOB, True, 100_000_000),
        (WEB, BACKUP, True, 50_000_000),
        (WEB, None, True, 50_000_000),
        (DB, JOB, True, 10**9),
        (JOB, DB, True, 10**9),
    ]
    parts.update(gains, samples, {"web": 0.1}, present, 1.0, SECOND_NS, 1.0)
    # Best-effort work is left out: its wait is in the blame of the service.
    assert parts.of("web") == pytest.approx(
        {
            DB: 0.1,
            BACKUP: 0.05,
            PartKind.OUTSIDE: 0.05,
            PartKind.UNKNOWN: 0.1,
            PartKind.HOST: 0.1,
            PartKind.SELF: 0.2,
        }
    )
    assert parts.of("db") == {}
    parts.update([], SampleDiff(), {}, index(), 2.0, SECOND_NS, 1.0)
    assert parts.of("web") == {}
