# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of the host and of cgroups, read from files that look like the kernel's."""

from pathlib import Path
from typing import Literal

import pytest

from controller.core.model import CgroupId, MemoryUse, QosClass, Target, TargetKind, Workload
from controller.core.units import NS_PER_SEC
from controller.host.memory import MemoryHierarchy
from controller.probes.memory_use import MemoryMeter, NonBestEffortMemory

BATCH = Target(TargetKind.CGROUP, "v2", 9, "/batch")


def job(name: str, qos: QosClass = QosClass.BE, at: Target | None = BATCH) -> Workload:
    cgroup = CgroupId("v2", hash(name))
    return Workload(name, cgroup, f"/batch/{name}", qos, name, "", memory_at=at)


class Host:
    """A mount with cgroups, and a /proc/meminfo; amounts in KiB."""

    def __init__(self, home: Path, version: Literal["v1", "v2"]) -> None:
        self.mount, self.version = home, version
        self.meminfo = home / "meminfo"
        self.meter = MemoryMeter(MemoryHierarchy(version, home), self.meminfo)
        self.set_available(600)

    def set_available(self, kib: int) -> None:
        self.meminfo.write_text(f"MemTotal: 1000 kB\nMemFree: 5 kB\nMemAvailable: {kib} kB\n")

    def set_use(self, path: str, used: int, cache: int, dirty: int = 0) -> None:
        folder = self.mount / path[1:]
        folder.mkdir(parents=True, exist_ok=True)
        name = "memory.current" if self.version == "v2" else "memory.usage_in_bytes"
        total = "total_" if self.version == "v1" else ""
        (folder / name).write_text(f"{used << 10}\n")
        (folder / "memory.stat").write_text(
            f"anon 99\n{total}inactive_file {cache << 10}\n{total}active_file 0\n"
            f"{'file_dirty' if self.version == 'v2' else 'total_dirty'} {dirty << 10}\n"
        )


@pytest.fixture(params=["v1", "v2"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    return Host(tmp_path, request.param)


def test_the_rest_of_the_host_is_what_is_neither_available_nor_limited(host: Host) -> None:
    host.meter.set_workloads([job("a"), job("b")])
    host.set_use("/batch", 200, cache=80, dirty=30)
    assert host.meter.poll(0) is None, "off"
    host.meter.reconfigure(True)
    sample = host.meter.poll(0)
    assert sample is not None
    assert (sample.available_bytes, sample.others_bytes) == (600 << 10, 250 << 10)
    assert sample.limited == (MemoryUse(CgroupId("v2", 9), 200 << 10, 150 << 10),)


def test_of_a_part_of_the_host_its_workloads_are_counted(host: Host) -> None:
    host.meter.set_workloads([job("a"), job("web", QosClass.LS, None), job("loose", at=None)])
    host.meter.reconfigure(True, capacity=500 << 10)
    for path, used in (("/batch", 100), ("/batch/web", 150), ("/batch/loose", 30)):
        host.set_use(path, used, cache=10)
    sample = host.meter.poll(0)
    assert sample is not None
    assert sample.others_bytes == (140 + 20) << 10
    assert sample.available_bytes == (500 - 160 - 90) << 10


def test_while_memory_is_short_workloads_are_read_faster(host: Host) -> None:
    jobs = [job(f"j{number}") for number in range(60)]
    host.meter.set_workloads(jobs)
    host.meter.reconfigure(True, short=500 << 10)
    host.set_use("/batch", 200, cache=0)
    for each in jobs:
        host.set_use(each.path, 70, cache=20)
    known = []
    for now_ns, available in ((0, 600), (1, 600), (NS_PER_SEC, 600), (NS_PER_SEC + 1, 499)):
        host.set_available(available)
        sample = host.meter.poll(now_ns)
        assert sample is not None
        known.append(len(sample.workloads))
        assert {each.needed_bytes for each in sample.workloads} == {50 << 10}
    assert known == [2, 2, 4, 54]


def test_many_cgroups_are_read_in_turn_and_once_a_second(host: Host) -> None:
    targets = [BATCH._replace(id=number, path=f"/j{number}") for number in range(70)]
    host.meter.set_workloads([job(each.path, at=each) for each in targets])
    host.meter.reconfigure(True)
    for each in targets:
        host.set_use(each.path, 1, cache=0)
    found = [host.meter.poll(now) for now in (0, NS_PER_SEC - 1, NS_PER_SEC)]
    # What is not read would be memory of the others: new ones are read at once.
    assert [len(each.limited) for each in found if each] == [70, 70, 70]
    assert found[1] is found[0]
    assert len({each.others_bytes for each in found if each}) == 1


def test_none_is_left_out_while_others_come_and_go(host: Host) -> None:
    targets = [BATCH._replace(id=number, path=f"/j{number}") for number in range(70)]
    host.meter.reconfigure(True)
    for each in targets:
        host.set_use(each.path, 1, cache=0)
    for number in range(3):
        came = BATCH._replace(id=100 + number, path=f"/new{number}")
        host.set_use(came.path, 9, cache=0)
        for each in targets:
            host.set_use(each.path, 2 + number, cache=0)
        host.meter.set_workloads([job(each.path, at=each) for each in (*targets, came)])
        sample = host.meter.poll(number * NS_PER_SEC)
        assert sample is not None and len(sample.limited) == 71
    assert sample is not None
    # 50 in each later poll, in turn: none has its first reading any more.
    assert min(each.used_bytes for each in sample.limited) > 2 << 10


def test_what_cannot_be_read_is_left_out(host: Host) -> None:
    host.meter.set_workloads([job("a")])
    host.meter.reconfigure(True)
    sample = host.meter.poll(0)
    assert sample is not None and sample.limited == ()
    host.meminfo.write_text("MemTotal: 1000 kB\n")
    assert host.meter.poll(1) is sample


def test_with_memory_for_more_than_a_second_each_second_is_enough(host: Host) -> None:
    host.meter.set_workloads([job("a")])
    host.meter.reconfigure(True)
    host.set_use("/batch", 200, cache=0)
    host.set_available(4 << 20)
    found = [host.meter.poll(now_ns) for now_ns in (0, 1)]
    assert found[1] is found[0]
    host.set_available((4 << 20) - 1)
    found = [host.meter.poll(now_ns) for now_ns in (NS_PER_SEC, NS_PER_SEC + 1)]
    assert found[1] is not found[0]


def test_while_a_limit_is_lowered_for_a_service_each_poll_reads(host: Host) -> None:
    host.meter.set_workloads([job("a")])
    host.meter.reconfigure(True)
    host.set_available(5 << 20)
    used = []
    for number in range(4):
        host.meter.closely = number == 2
        host.set_use("/batch", 100 + number, cache=0)
        sample = host.meter.poll(number)
        assert sample is not None
        used.append(sample.limited[0].used_bytes >> 10)
    assert used == [100, 100, 102, 102]


def test_memory_of_another_form_is_unknown(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_bytes(b"MemTotal: 100 kB\nMemAvailable: \xb2\xff kB\n")
    memory = NonBestEffortMemory(MemoryHierarchy("v2", tmp_path), meminfo)
    assert memory.poll([]) is None
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable: 40 kB\n")
    assert memory.poll([]) == 60 << 10
