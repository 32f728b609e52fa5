# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Memory and disk traffic per workload, from files as cgroup v2 has them."""

from pathlib import Path

from controller.model import CgroupId, QosClass, Workload
from controller.probes.usage import Usage, UsageMeter


def make(root: Path, name: str, memory: str | None, io: str | None) -> Workload:
    directory = root / name
    directory.mkdir()
    for file, text in (("memory.current", memory), ("io.stat", io)):
        if text is not None:
            (directory / file).write_text(text)
    identity = CgroupId("v2", directory.stat().st_ino)
    return Workload(name, identity, f"/{name}", QosClass.BE, "", "")


def test_what_a_workload_uses(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory io\n")
    two = "8:0 rbytes=10 wbytes=20 rios=1 wios=2\n253:0 rbytes=300 wbytes=0 dbytes=7\n"
    busy = make(tmp_path, "busy", "4096\n", two)
    fresh = make(tmp_path, "fresh", "0\n", "")
    bare = make(tmp_path, "bare", None, None)
    meter = UsageMeter(tmp_path)
    meter.follow([busy, fresh, bare])
    assert meter.read() == {
        busy.cgroup: Usage(4096, 330),
        fresh.cgroup: Usage(0, 0),
        bare.cgroup: Usage(None, None),
    }
    meter.follow([busy])
    assert meter.read().keys() == {busy.cgroup}


def test_without_the_controllers_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    meter = UsageMeter(tmp_path)
    meter.follow([make(tmp_path, "busy", "4096\n", "")])
    assert meter.read() == {}
    assert UsageMeter(None).read() == {}


def test_of_many_some_are_read_at_a_time_and_all_in_turn(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory\n")
    workloads = [make(tmp_path, f"w{n}", str(n), None) for n in range(120)]
    meter = UsageMeter(tmp_path)
    meter.follow(workloads)
    assert [len(meter.read()) for _ in range(3)] == [50, 100, 120]
    assert meter.read()[workloads[119].cgroup] == Usage(119, None)
