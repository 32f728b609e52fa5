# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pressure from files in the kernel's format, with directories added and removed."""

import os
from pathlib import Path
import shutil

import pytest

from controller.core.model import CgroupId, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.probes.psi import Pressure, PressureMeter, parse_some_ns

WEB = Workload("web", CgroupId("cpu", 6), "/web", QosClass.LS, "web", "nginx")
JOB = Workload("job", CgroupId("cpu", 7), "/job", QosClass.BE, "job", "")


def text(total_us: int) -> str:
    averages = "avg10=1.50 avg60=0.00 avg300=0.00"
    return f"some {averages} total={total_us}\nfull {averages} total=1\n"


class Tree:
    def __init__(self, root: Path) -> None:
        self.unified, self.host = root / "unified", root / "pressure"
        self.unified.mkdir()
        self.host.mkdir()

    def cgroup(self, name: str, *totals_us: int) -> Path:
        path = self.unified / name
        path.mkdir(exist_ok=True)
        for resource, total_us in zip(("cpu", "memory", "io"), totals_us, strict=False):
            (path / f"{resource}.pressure").write_text(text(total_us))
        return path


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_the_total_of_some_is_read() -> None:
    assert parse_some_ns(text(123).encode()) == 123_000
    assert parse_some_ns(b"full avg10=0.00 avg60=0.00 avg300=0.00 total=5\n") is None
    assert parse_some_ns(b"") is None


def test_services_and_the_host_once_a_second(tree: Tree) -> None:
    tree.cgroup("web", 1, 2, 3)
    tree.cgroup("job", 9, 9, 9)
    (tree.host / "cpu").write_text(text(7))
    meter = PressureMeter(tree.unified, tree.host)
    meter.set_workloads([WEB, JOB])
    meter.poll(NS_PER_SEC, None)
    assert meter.host == Pressure(7000, None, None)
    assert meter.workloads == {WEB.cgroup: Pressure(1000, 2000, 3000)}
    tree.cgroup("web", 5, 2, 3)
    meter.poll(2 * NS_PER_SEC - 1, None)
    assert meter.workloads[WEB.cgroup].cpu == 1000
    meter.poll(2 * NS_PER_SEC, None)
    assert meter.workloads[WEB.cgroup].cpu == 5000
    meter.close()


def test_removed_directories_leave_no_open_descriptor(tree: Tree) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    meter = PressureMeter(tree.unified, tree.host)
    meter.set_workloads([WEB])
    for second in range(5):
        meter.poll((4 * second + 1) * NS_PER_SEC, None)
        assert meter.workloads == {}
        path = tree.cgroup("web", second, second)
        meter.poll((4 * second + 2) * NS_PER_SEC, None)
        assert meter.workloads == {WEB.cgroup: Pressure(second * 1000, second * 1000, None)}
        path.rename(tree.unified / "old")  # keeps its inode in use; the kernel reuses no ids
        tree.cgroup("web", 77)
        meter.poll((4 * second + 3) * NS_PER_SEC, None)
        assert meter.workloads[WEB.cgroup].cpu == 77_000
        shutil.rmtree(tree.unified / "old")
        shutil.rmtree(path)
    meter.set_workloads([])
    meter.poll(100 * NS_PER_SEC, None)
    assert descriptors() == before
    meter.close()


def test_without_a_cgroup2_tree_the_host_remains(tree: Tree) -> None:
    (tree.host / "memory").write_text(text(4))
    meter = PressureMeter(None, tree.host)
    meter.set_workloads([WEB])
    meter.poll(0, None)
    assert meter.host == Pressure(None, 4000, None)
    assert meter.workloads == {}
    meter.close()


def test_a_tenth_of_the_inactive_services_is_read_in_a_round(tree: Tree) -> None:
    web = [
        WEB._replace(cgroup=CgroupId("cpu", number), path=f"/web{number}") for number in range(20)
    ]
    for number in range(20):
        tree.cgroup(f"web{number}", 1, 1, 1)
    meter = PressureMeter(tree.unified, tree.host)
    meter.set_workloads(web)
    for second in range(1, 13):  # new services twice, then one full rotation
        meter.poll(second * NS_PER_SEC, [])
    for number in range(20):
        tree.cgroup(f"web{number}", 2, 1, 1)
    meter.poll(20 * NS_PER_SEC, [web[5].cgroup])
    assert web[5].cgroup in meter.changed
    assert len(meter.changed) in (2, 3)
    meter.poll(20 * NS_PER_SEC + 1, [])
    assert meter.changed == ()
    meter.close()


def test_a_stalling_service_is_read_as_long_as_it_stalls(tree: Tree) -> None:
    """A task that waits for a disk does not run, so no other counter changes."""
    others = [
        WEB._replace(cgroup=CgroupId("cpu", number), path=f"/other{number}")
        for number in range(10, 50)
    ]
    meter = PressureMeter(tree.unified, tree.host)
    meter.set_workloads([WEB, *others])
    tree.cgroup("web", 0, 0, 0)
    for second in range(1, 3):
        meter.poll(second * NS_PER_SEC, [])
    meter.poll(3 * NS_PER_SEC, [WEB.cgroup])
    for second in range(4, 9):
        tree.cgroup("web", 0, 0, second)
        meter.poll(second * NS_PER_SEC, [])
        assert meter.workloads[WEB.cgroup].io == second * 1000
    meter.close()


@pytest.mark.parametrize("total", ["", "total=", "total=x", "total=-1"])
def test_a_row_of_another_form_is_no_pressure_and_the_others_are_read(
    tree: Tree, total: str
) -> None:
    path = tree.cgroup("web", 1, 2, 3)
    (path / "memory.pressure").write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 {total}\n")
    meter = PressureMeter(tree.unified, tree.host)
    meter.set_workloads([WEB])
    meter.poll(0, None)
    assert meter.workloads[WEB.cgroup] == Pressure(1000, None, 3000)
    meter.close()


def test_expired_readings_are_renewed_at_once(tree: Tree) -> None:
    tree.cgroup("web", 1, 2, 3)
    meter = PressureMeter(tree.unified, tree.host)
    meter.set_workloads([WEB])
    meter.poll(0, None)
    tree.cgroup("web", 1, 2, 9)
    meter.poll(1, None)
    assert (meter.read_ns, meter.workloads[WEB.cgroup].io) == (0, 3000)
    meter.expire()
    meter.poll(2, None)
    assert (meter.read_ns, meter.workloads[WEB.cgroup].io) == (2, 9000)
    meter.poll(NS_PER_SEC, None)
    assert meter.read_ns == 2
    meter.close()
