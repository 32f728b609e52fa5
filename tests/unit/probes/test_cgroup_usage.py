# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Memory and disk traffic per workload, from files in the format of cgroup v2."""

from dataclasses import replace
from pathlib import Path

import pytest

from controller.core.model import CgroupId, DiskRequests, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.host import odd_rows
from controller.host.memory import MemoryHierarchy
from controller.probes.cgroup_usage import (
    Usage,
    UsageMeter,
)
from tests.sim.plants import DiskNode
from tests.support.loops.closed_loop import make_settings
from tests.support.loops.resource_loop import resource_spec


def make(root: Path, name: str, memory: str | None, io: str | None) -> Workload:
    directory = root / name
    directory.mkdir()
    for file, text in (("memory.current", memory), ("io.stat", io)):
        if text is not None:
            (directory / file).write_text(text)
    identity = CgroupId("v2", directory.stat().st_ino)
    return Workload(name, identity, f"/{name}", QosClass.BE, "", "")


def test_memory_and_disk_traffic_are_read(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory io\n")
    two = "8:0 rbytes=10 wbytes=20 rios=1 wios=2\n253:0 rbytes=300 wbytes=0 dbytes=7\n"
    busy = make(tmp_path, "busy", "4096\n", two)
    fresh = make(tmp_path, "fresh", "0\n", "")
    bare = make(tmp_path, "bare", None, None)
    meter = UsageMeter(tmp_path, MemoryHierarchy("v2", tmp_path))
    meter.set_workloads([busy, fresh, bare])
    meter.poll(0, None)
    assert meter.workloads == {
        busy.cgroup: Usage(4096, 330),
        fresh.cgroup: Usage(0, 0),
        bare.cgroup: Usage(None, None),
    }
    meter.set_workloads([busy])
    assert meter.workloads.keys() == {busy.cgroup}


def test_requests_to_each_disk_are_counted_for_services_with_an_indicator_of_disks(
    tmp_path: Path,
) -> None:
    (tmp_path / "cgroup.controllers").write_text("io\n")
    rows = (
        "8:0 rbytes=10 wbytes=20 rios=1 wios=2 dios=9\n253:0 rbytes=0 wbytes=0 rios=0 wios=0\n"
        "8:16 rbytes=0 wbytes=0 rios=5 wios=0\n(unknown) rios=7 wios=7\n8:32 rios=x wios=1\n9:0\n"
    )
    store, other, batch = (
        make(tmp_path, name, None, rows)._replace(qos=qos, profile=profile)
        for name, qos, profile in (
            ("store", QosClass.LS, "disks"),
            ("other", QosClass.LS, "default"),
            ("batch", QosClass.BE, "disks"),
        )
    )
    asking = resource_spec(DiskNode)
    profile = replace(make_settings().profiles["default"], name="disks", indicators=(asking,))
    settings = replace(make_settings(), profiles={"disks": profile, **make_settings().profiles})
    meter = UsageMeter(tmp_path, MemoryHierarchy("v2", None))
    meter.set_workloads([store, other, batch])
    meter.poll(0, None)
    assert {each.requests_by_disk for each in meter.workloads.values()} == {None}
    meter.reconfigure(settings)
    meter.poll(NS_PER_SEC, None)
    assert meter.changed == [store.cgroup]
    assert meter.workloads == {
        store.cgroup: Usage(None, 30, (DiskRequests("8:0", 3), DiskRequests("8:16", 5))),
        other.cgroup: Usage(None, 30),
        batch.cgroup: Usage(None, 30),
    }
    meter.reconfigure(make_settings())
    meter.poll(2 * NS_PER_SEC, None)
    assert meter.workloads[store.cgroup].requests_by_disk is None


def test_without_the_controllers_there_is_no_usage(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    meter = UsageMeter(tmp_path, MemoryHierarchy("v2", tmp_path))
    for each in (meter, UsageMeter(None, MemoryHierarchy("v2", None))):
        each.set_workloads([make(tmp_path, f"busy{id(each)}", "4096\n", "")])
        each.poll(0, None)
        assert each.workloads == {}


def test_on_v1_memory_is_read_in_the_hierarchy_of_its_controller(tmp_path: Path) -> None:
    memory, unified = tmp_path / "memory", tmp_path / "unified"
    for each in (memory, unified):
        each.mkdir()
    (unified / "cgroup.controllers").write_text("")
    web = make(memory, "web", None, None)
    (memory / "web/memory.usage_in_bytes").write_text("8192\n")
    meter = UsageMeter(unified, MemoryHierarchy("v1", memory))
    meter.set_workloads([web])
    meter.poll(0, None)
    assert meter.workloads == {web.cgroup: Usage(8192, None)}


def test_of_many_workloads_fifty_are_read_per_poll(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory\n")
    workloads = [make(tmp_path, f"w{n}", str(n), None) for n in range(120)]
    meter = UsageMeter(tmp_path, MemoryHierarchy("v2", tmp_path))
    meter.set_workloads(workloads)
    known = []
    for now_ns in range(3):
        meter.poll(now_ns, [])
        known.append(len(meter.workloads))
    assert known == [50, 100, 120]
    assert meter.workloads[workloads[119].cgroup] == Usage(119, None)


def test_active_workloads_are_read_within_a_second_others_in_rotation(
    tmp_path: Path,
) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory\n")
    workloads = [make(tmp_path, f"w{n}", "1", None) for n in range(40)]
    meter = UsageMeter(tmp_path, MemoryHierarchy("v2", tmp_path))
    meter.set_workloads(workloads)
    for second in range(3):
        meter.poll(second * NS_PER_SEC, [])
    for each in workloads:
        (tmp_path / each.name / "memory.current").write_text("2")
    meter.poll(3 * NS_PER_SEC - 1, [workloads[9].cgroup])
    assert meter.changed == []
    meter.poll(3 * NS_PER_SEC, [])
    assert workloads[9].cgroup in meter.changed
    assert len(meter.changed) in (4, 5)
    for second in range(4, 13):
        meter.poll(second * NS_PER_SEC, [])
    assert set(meter.workloads.values()) == {Usage(2, None)}


def test_rows_of_another_form_are_left_out_and_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(odd_rows, "_reported", set())
    (tmp_path / "cgroup.controllers").write_text("memory io\n")
    rows = (
        "8:0 rbytes=10 wbytes=20\n8:16 rbytes=x wbytes=5\n(unknown) rbytes=300 wbytes=0\n7:0 7:1\n"
    )
    odd, other = make(tmp_path, "odd", "much\n", rows), make(tmp_path, "other", "1\n", rows)
    meter = UsageMeter(tmp_path, MemoryHierarchy("v2", tmp_path))
    meter.set_workloads([odd, other])
    meter.poll(0, None)
    assert meter.workloads == {odd.cgroup: Usage(None, 330), other.cgroup: Usage(1, 330)}
    arguments = [each.args for each in caplog.records if isinstance(each.args, tuple)]
    assert sorted(str(each[0]) for each in arguments if each) == [
        "io.stat",
        "memory.current",
    ]
