# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which cgroups outside all workloads are measured: never one above or inside a workload."""

from pathlib import Path

from controller.core.model import CgroupId, QosClass, Workload
from controller.host.facts import CgroupLayout
from controller.probes.outside import MOST, OutsideFinder

CGROUPS = (
    *("/system.slice/ssh.service/job", "/system.slice/backup.service", "/user.slice/user-0.slice"),
    *("/kubepods/burstable/pod1/web", "/kubepods/pod2", "/batch/one/two", "/agent"),
)


def found(mount: Path, *workloads: str) -> set[str]:
    finder = OutsideFinder(CgroupLayout(hierarchy="v2", mount=mount, version="v2", unified=mount))
    present = [Workload(p, CgroupId("v2", 1), p, QosClass.BE, p, "") for p in workloads]
    outside = finder.find(present)
    for each in outside:
        assert each.cgroup == CgroupId("v2", (mount / each.path[1:]).stat().st_ino)
    assert all(new is old for new, old in zip(finder.find(present), outside, strict=True))
    return {each.path for each in outside}


def make(mount: Path) -> Path:
    for each in CGROUPS:
        (mount / each[1:]).mkdir(parents=True)
    (mount / "cgroup.procs").touch()
    return mount


def test_slices_and_what_is_beside_workloads_are_taken_apart(tmp_path: Path) -> None:
    make(tmp_path)
    assert found(tmp_path) == {
        *("/system.slice/ssh.service", "/system.slice/backup.service"),
        *("/user.slice/user-0.slice", "/kubepods", "/batch", "/agent"),
    }


def test_no_cgroup_above_or_inside_a_workload(tmp_path: Path) -> None:
    make(tmp_path)
    workloads = "/kubepods/burstable/pod1/web", "/batch", "/system.slice/ssh.service/job"
    assert found(tmp_path, *workloads) == {
        *("/system.slice/backup.service", "/user.slice/user-0.slice", "/kubepods/pod2", "/agent"),
    }


def test_there_is_a_bound(tmp_path: Path) -> None:
    for number in range(2 * MOST):
        (tmp_path / f"job{number}").mkdir()
    assert len(found(tmp_path)) == MOST


def test_a_tree_that_is_gone(tmp_path: Path) -> None:
    assert found(tmp_path / "none") == set()
