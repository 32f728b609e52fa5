# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The disk probe compared with known requests."""

from collections.abc import Iterator
import itertools
from pathlib import Path

import pytest

from controller.core.model import CgroupId, QosClass, Workload
from controller.host.facts import CgroupLayout, find_controller
from controller.probes.disk import DiskProbe, DiskUse
from tests.kernel.disks import Disk, made_disks, read_blocks, reading
from tests.kernel.knobs import make_child
from tests.support.cgroups import remove_cgroup
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel


class Readers:
    """The probe, two disks, and cgroups of a service and of a job, by name."""

    def __init__(self, layout: CgroupLayout, root: Path, disks: list[Disk]) -> None:
        _, mount = find_controller("blkio", layout.unified)
        assert mount is not None
        self.root = make_child(mount, root.name + "-io")
        self.disks, self._layout = disks, layout
        self.service, self.job = self.root / "service", self.root / "job"
        for folder in (self.service, self.job):
            folder.mkdir()
        self.probe = DiskProbe(layout)
        self.follow()

    def follow(self, job: QosClass = QosClass.BE) -> None:
        """Count for both, of which the job has the class *job*."""
        self.probe.set_workloads(
            self.workload(each, qos) for each, qos in ((self.service, QosClass.LS), (self.job, job))
        )

    def workload(self, folder: Path, qos: QosClass) -> Workload:
        """Return the workload of a cgroup."""
        path = f"/{self.root.name}/{folder.name}"
        return Workload(folder.name, self._id(folder), path, qos, "", "")

    def use(self, folder: Path) -> DiskUse:
        return self.probe.poll(0)[self._id(folder)]

    def inflicted(self, folder: Path) -> int:
        return self.use(folder).disk_inflicted_ns

    def close(self) -> None:
        self.probe.close()
        remove_cgroup(self.root)

    def _id(self, folder: Path) -> CgroupId:
        # On v1 the cpu controller's cgroup is another one, here made up.
        version = self._layout.version
        inode = 10**6 + len(folder.name) if version == "v1" else folder.stat().st_ino
        return CgroupId(self._layout.hierarchy, inode)


@pytest.fixture
def readers(cgroup_layout: CgroupLayout, cgroup_root: Path) -> Iterator[Readers]:
    with made_disks(2) as disks:
        made = Readers(cgroup_layout, cgroup_root, disks)
        yield made
        made.close()


def test_reads_are_counted_one_by_one_and_a_service_alone_waits_for_nobody(
    readers: Readers,
) -> None:
    # The first one to open a disk looks for its partitions.
    read_blocks(readers.disks[0], readers.service, 1)
    count_each(readers, readers.service, 300)
    used = readers.use(readers.service)
    assert used.disk_wait_ns > 0
    assert used.disk_inflicted_ns == 0
    assert readers.use(readers.job) == DiskUse(0, 0, 0)


def count_each(readers: Readers, folder: Path, count: int, workload: Path | None = None) -> None:
    """Let *folder* read *count* blocks until each was counted for *workload*, or the service."""
    counting = readers.service if workload is None else workload

    def counts_each() -> bool:
        before = readers.use(counting).disk_requests
        read_blocks(readers.disks[0], folder, count)
        counted = readers.use(counting).disk_requests - before
        assert counted <= count
        return counted == count

    # The kernel runs no program of a tracepoint that interrupts another one on the same CPU.
    eventually("a series without an event that was left out", counts_each)


def test_the_one_who_uses_the_same_disk_inflicts_and_not_the_user_of_another(
    readers: Readers,
) -> None:
    mine, other = readers.disks
    with reading(other, readers.job):
        eventually("the job reads", lambda: readers.use(readers.job).disk_requests > 10)
        read_blocks(mine, readers.service, 300)
        assert readers.inflicted(readers.service) == 0

    with reading(mine, readers.job):
        eventually("the service waits for the job", lambda: inflicted_by(readers, mine, 100) > 0)
    used = readers.use(readers.service)
    assert used.disk_inflicted_ns < used.disk_wait_ns
    assert readers.inflicted(readers.job) == 0, "a job suffers from no other"


def inflicted_by(readers: Readers, disk: Disk, count: int) -> int:
    """Let the service read *count* blocks; return what it had to wait for best-effort meanwhile."""
    before = readers.inflicted(readers.service)
    read_blocks(disk, readers.service, count)
    return readers.inflicted(readers.service) - before


def test_another_class_is_followed_without_a_new_count(readers: Readers) -> None:
    mine = readers.disks[0]
    read_blocks(mine, readers.job, 50)
    readers.follow(job=QosClass.LS)
    with reading(mine, readers.job):
        # What best-effort work did in the last 134 ms still counts.
        eventually("the job reads", lambda: readers.use(readers.job).disk_requests > 60)
        eventually("nothing is inflicted", lambda: inflicted_by(readers, mine, 100) == 0)


def test_cgroups_below_a_workload_belong_to_it_and_others_to_none(readers: Readers) -> None:
    below, outside = readers.service / "pod/container", readers.root / "outside"
    below.mkdir(parents=True)
    outside.mkdir()
    read_blocks(readers.disks[0], outside, 40)
    assert readers.use(readers.service).disk_requests == 0
    count_each(readers, below, 40)
    assert readers.use(readers.job).disk_requests == 0


def test_a_cgroup_that_becomes_a_workload_is_counted_from_then_on(readers: Readers) -> None:
    late = readers.root / "late"
    late.mkdir()
    read_blocks(readers.disks[0], late, 40)
    workloads = [readers.workload(each, QosClass.LS) for each in (readers.service, late)]
    readers.probe.set_workloads(workloads)
    # The probe searches again 67 ms later at most.
    count_each(readers, late, 40, workload=late)
    assert readers.use(readers.service).disk_requests == 0


def test_cgroups_that_the_probe_keeps_in_the_same_place_are_told_apart(readers: Readers) -> None:
    place = readers.service.stat().st_ino % 64
    names = (readers.root / f"other-{number}" for number in itertools.count())
    for other in names:
        other.mkdir()
        if other.stat().st_ino % 64 == place:
            break
        other.rmdir()
    for _ in range(40):
        read_blocks(readers.disks[0], readers.service, 20)
        before = readers.use(readers.service).disk_requests
        read_blocks(readers.disks[0], other, 20)
        assert readers.use(readers.service).disk_requests == before
    count_each(readers, readers.service, 20)
