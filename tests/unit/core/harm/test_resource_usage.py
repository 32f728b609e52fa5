# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Best-effort's share of the use of a resource, and the disks that services used."""

import pytest

from controller.core.harm.resource_usage import DisksInUse, LinkSide, ResourceUsage, UsageTracker
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.model import (
    CgroupId,
    Channel,
    DiskRequests,
    LinkSample,
    QosClass,
    Snapshot,
    Target,
    TargetKind,
    Workload,
    WorkloadSample,
)
from controller.core.workload_index import WorkloadIndex
from tests.support.loops.closed_loop import SECOND_NS, make_settings

WEB, BATCH = CgroupId("cpu", 1), CgroupId("cpu", 2)
LINK = Target(TargetKind.LINK, "net", 3, "eth0")
INDEX = WorkloadIndex(
    [
        Workload("web", WEB, "/web", QosClass.LS, "web", "default"),
        Workload("batch", BATCH, "/batch", QosClass.BE, "batch", "default"),
    ],
    make_settings().profiles,
)


def test_the_share_before_a_squeeze_outlasts_the_squeeze() -> None:
    use = UsageTracker()
    for second in range(10):
        use.update([("batch", True, second * 800), ("web", False, second * 200)], 1.0, False)
    assert use.share == pytest.approx(0.8)
    count = 9 * 800
    for second in range(10, 70):
        count += 80
        use.update([("batch", True, count), ("web", False, second * 200)], 1.0, True)
    assert use.share == pytest.approx(0.78, abs=0.02)
    for second in range(70, 190):
        count += 80
        use.update([("batch", True, count), ("web", False, second * 200)], 1.0, False)
    assert use.share == pytest.approx(0.29, abs=0.03)


def test_without_a_measurement_there_is_no_share() -> None:
    use = UsageTracker()
    use.update([], 1.0, False)
    assert use.share is None
    use.update([("batch", True, 100)], 1.0, False)
    assert use.share is None


def snapshot_at(second: int, batch_bytes: int, web_bytes: int) -> Snapshot:
    """Return a snapshot with the bytes that each read from disks and sent over the link."""
    counts = ((WEB, QosClass.LS, web_bytes), (BATCH, QosClass.BE, batch_bytes))
    return Snapshot(
        time_ns=second * SECOND_NS,
        age_ns=0,
        workloads=tuple(WorkloadSample(cgroup, io_bytes=count) for cgroup, _, count in counts),
        links=tuple(LinkSample(LINK, False, tier, count, 0, 0, 0) for _, tier, count in counts),
    )


@pytest.mark.parametrize("channel", [Channel.IO, Channel.NETWORK])
def test_what_was_used_while_a_channel_was_not_watched_does_not_count(channel: Channel) -> None:
    usage = ResourceUsage()

    def measure(second: int, batch_bytes: int, watched: bool) -> None:
        snapshot = snapshot_at(second, batch_bytes, 1000 * second)
        usage.update(snapshot, INDEX, {channel: False} if watched else {})

    for second in range(10):
        measure(second, 1000 * second, watched=True)
    # The last service of the channel leaves, and the job uses the resource for an hour.
    for second in range(10, 3600):
        measure(second, 10**9 * second, watched=False)
    for second in range(3600, 3610):
        measure(second, 3600 * 10**9, watched=True)
    side = LinkSide("net", 3, False)
    use = usage.links[side] if channel is Channel.NETWORK else usage.of(channel)
    assert use.wanted == 0
    assert use.others == pytest.approx(1000)
    assert usage.share(channel, IndicatorTracker(), INDEX) == 0


def test_without_counters_of_the_cache_all_cpu_time_counts_also_that_outside_workloads() -> None:
    tracker = IndicatorTracker()
    for second in range(60):
        used_ns = second * SECOND_NS
        snapshot = Snapshot(
            time_ns=second * SECOND_NS,
            age_ns=0,
            workloads=tuple(WorkloadSample(each, oncpu_ns=used_ns // 20) for each in (WEB, BATCH)),
            system_oncpu_ns=used_ns * 19 // 10,
        )
        dt_ns = SECOND_NS if second else 0
        tracker.update(snapshot, INDEX, dt_ns, oldest_ns=SECOND_NS, longest_gap_ns=SECOND_NS)
    share = ResourceUsage().share(Channel.CACHE, tracker, INDEX)
    assert share == pytest.approx(0.05 / 2.0, rel=0.01)


def test_whether_the_cache_is_measured_or_cpu_time_stands_for_it() -> None:
    usage = ResourceUsage()
    assert usage.is_measured(Channel.MEMORY)
    for second in range(3):
        assert not usage.is_measured(Channel.CACHE) or second == 2
        samples = tuple(WorkloadSample(each, llc_misses=second * 1000) for each in (WEB, BATCH))
        snapshot = Snapshot(time_ns=second * SECOND_NS, age_ns=0, workloads=samples)
        usage.update(snapshot, INDEX, {Channel.CACHE: False})
    assert usage.is_measured(Channel.CACHE)


def counted(cgroup: CgroupId, **counts: int) -> WorkloadSample:
    found = tuple(DiskRequests(*each) for each in counts.items())
    return WorkloadSample(cgroup, requests_by_disk=found)


def test_a_disk_is_used_for_ten_seconds_after_its_count_grew() -> None:
    disks = DisksInUse()
    assert not disks.is_measured
    disks.update([counted(WEB, a=5, b=3), counted(BATCH)], 0)
    assert disks.is_measured
    assert disks.of([WEB], 0) == frozenset(), "what it used long ago, as far as is known"
    grown = [counted(WEB, a=6, b=3), counted(BATCH, c=1)]
    disks.update(grown, SECOND_NS)
    assert disks.of([WEB], SECOND_NS) == {"a"}
    assert disks.of([WEB, BATCH], SECOND_NS) == {"a", "c"}
    for second in range(2, 12):
        disks.update(grown, second * SECOND_NS)
    assert disks.of([WEB, BATCH], 11 * SECOND_NS - 1) == {"a", "c"}
    assert disks.of([WEB, BATCH], 11 * SECOND_NS) == frozenset()


def test_a_lower_count_is_a_new_beginning_and_a_lost_workload_is_forgotten() -> None:
    disks = DisksInUse()
    disks.update([counted(WEB, a=5)], 0)
    disks.update([counted(WEB, a=2)], SECOND_NS)
    assert disks.of([WEB], SECOND_NS) == frozenset()
    disks.update([counted(WEB, a=3)], 2 * SECOND_NS)
    assert disks.of([WEB], 2 * SECOND_NS) == {"a"}
    disks.update([WorkloadSample(WEB)], 3 * SECOND_NS)
    assert disks.of([WEB], 3 * SECOND_NS) == frozenset()
    assert not disks.is_measured
