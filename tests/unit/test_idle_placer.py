# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Where sched-idle goes in a tree of directories that looks like cgroups."""

from pathlib import Path

import pytest

from controller.host import CgroupLayout
from controller.model import CgroupId, QosClass, Workload
from controller.workloads.idle import IdlePlacer, without_effect

SECOND = 1_000_000_000


class Tree:
    """Directories with a cgroup.procs each, and the workloads in them."""

    def __init__(self, mount: Path) -> None:
        self.layout = CgroupLayout(hierarchy="cpu", mount=mount, version="v1", unified=None)
        self.workloads: tuple[Workload, ...] = ()
        self.placer = IdlePlacer(self.layout)
        (mount / "cgroup.procs").write_text("1\n")

    def make(self, path: str, procs: str = "") -> Path:
        folder = self.layout.mount / path[1:]
        for part in (*reversed(folder.relative_to(self.layout.mount).parents), Path(path[1:])):
            directory = self.layout.mount / part
            directory.mkdir(exist_ok=True)
            if not (directory / "cgroup.procs").exists():
                (directory / "cgroup.procs").write_text("")
        (folder / "cgroup.procs").write_text(procs)
        return folder

    def add(self, path: str, qos: QosClass) -> None:
        inode = self.make(path, "7\n").stat().st_ino
        workload = Workload(path, CgroupId("cpu", inode), path, qos, path, "")
        self.workloads = (*self.workloads, workload)

    def levels(self, now_s: int = 0) -> dict[str, str]:
        self.workloads = self.placer.place(
            tuple(w._replace(idle_at=None) for w in self.workloads), now_s * SECOND
        )
        return {
            w.path: w.path if w.idle_at is None else w.idle_at.path
            for w in self.workloads
            if w.qos is QosClass.BE
        }


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_idle_goes_to_the_parent_that_holds_only_best_effort(tree: Tree) -> None:
    tree.add("/pods/burstable/web", QosClass.LS)
    tree.add("/pods/besteffort/a", QosClass.BE)
    tree.add("/pods/besteffort/b", QosClass.BE)
    tree.make("/pods/besteffort/just-made")  # nobody in it yet
    assert set(tree.levels().values()) == {"/pods/besteffort"}
    target = tree.workloads[1].idle_at
    assert target is not None
    assert target.id == (tree.layout.mount / "pods/besteffort").stat().st_ino
    assert without_effect(tree.workloads) == ()


def test_processes_of_others_are_seen_later(tree: Tree) -> None:
    tree.add("/web", QosClass.LS)
    tree.add("/batch/a", QosClass.BE)
    assert tree.levels() == {"/batch/a": "/batch"}
    tree.make("/batch/cron/deep", "9\n")
    assert tree.levels(now_s=19) == {"/batch/a": "/batch"}
    assert tree.levels(now_s=20) == {"/batch/a": "/batch/a"}
    assert without_effect(tree.workloads) == ("/batch/a",)


def test_processes_beside_the_workloads_count(tree: Tree) -> None:
    tree.add("/web", QosClass.LS)
    tree.add("/batch/a", QosClass.BE)
    tree.make("/batch", "9\n")
    assert tree.levels() == {"/batch/a": "/batch/a"}


def test_a_new_workload_is_looked_at_at_once(tree: Tree) -> None:
    tree.add("/web", QosClass.LS)
    tree.add("/batch/a", QosClass.BE)
    assert tree.levels() == {"/batch/a": "/batch"}
    tree.add("/batch/web", QosClass.LS)
    assert tree.levels() == {"/batch/a": "/batch/a"}


def test_a_service_that_restarts_moves_nothing(tree: Tree) -> None:
    tree.add("/pods/web", QosClass.LS)
    tree.add("/pods/batch/a", QosClass.BE)
    assert tree.levels() == {"/pods/batch/a": "/pods/batch"}
    tree.workloads = tree.workloads[1:]
    assert tree.levels() == {"/pods/batch/a": "/pods/batch"}


def test_best_effort_beside_one_service_and_far_from_another_is_partial(tree: Tree) -> None:
    tree.add("/pods/web", QosClass.LS)
    tree.add("/other", QosClass.LS)
    tree.add("/pods/batch", QosClass.BE)
    assert tree.levels() == {"/pods/batch": "/pods/batch"}
    assert without_effect(tree.workloads) == ("/pods/batch",)
