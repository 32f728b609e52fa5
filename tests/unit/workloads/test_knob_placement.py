# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Placement of cpu.idle and of a common quota in a tree of directories that looks like cgroups."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.core.model import CgroupId, QosClass, Target, TargetKind, Workload
from controller.core.settings import Profile
from controller.core.workload_index import WorkloadIndex
from controller.host.facts import CgroupLayout
from controller.host.memory import MemoryHierarchy
from controller.workloads.knob_placement import KnobPlacer, partial_idle

SECOND = 1_000_000_000
PROFILE = Profile(name="", indicators=(), sched_idle=True, be_share_min=0.05, idle_oncpu_ratio=0.01)
PATHS = [f"/pods/{level}{name}" for level in ("", "besteffort/", "burstable/") for name in "ab"]


class Tree:
    """Directories with a cgroup.procs each, and the workloads in them."""

    def __init__(
        self,
        mount: Path,
        version: Literal["v1", "v2"] = "v1",
        memory: MemoryHierarchy | None = None,
    ) -> None:
        self.layout = CgroupLayout(hierarchy="cpu", mount=mount, version=version, unified=None)
        self.workloads: tuple[Workload, ...] = ()
        self.placer = KnobPlacer(self.layout, memory)
        (mount / "cgroup.procs").write_text("1\n")

    def make(self, path: str, procs: str = "") -> Path:
        folder = self.layout.mount / path[1:]
        for part in (*reversed(folder.relative_to(self.layout.mount).parents), Path(path[1:])):
            directory = self.layout.mount / part
            directory.mkdir(exist_ok=True)
            if not (directory / "cgroup.procs").exists():
                (directory / "cgroup.procs").write_text("")
        (folder / "cgroup.procs").write_text(procs)
        (folder / "cgroup.events").write_text(f"populated {int(bool(procs))}\n")
        return folder

    def add(self, path: str, qos: QosClass) -> None:
        inode = self.make(path, "7\n").stat().st_ino
        workload = Workload(path, CgroupId("cpu", inode), path, qos, path, "")
        self.workloads = (*self.workloads, workload)

    def place(self, now_s: int = 0) -> None:
        self.workloads = self.placer.place(
            tuple(w._replace(idle_at=None, quota_at=None, memory_at=None) for w in self.workloads),
            now_s * SECOND,
        )

    def quotas(self, now_s: int = 0) -> dict[str, str | None]:
        self.place(now_s)
        return {w.path: w.quota_at and w.quota_at.path for w in self.workloads}

    def levels(self, now_s: int = 0) -> dict[str, str]:
        self.place(now_s)
        return {
            w.path: w.path if w.idle_at is None else w.idle_at.path
            for w in self.workloads
            if w.qos is QosClass.BE
        }


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def tree_v2(tmp_path: Path) -> Tree:
    return Tree(tmp_path, "v2")


def test_idle_goes_to_the_parent_that_holds_only_best_effort(tree: Tree) -> None:
    tree.add("/pods/burstable/web", QosClass.LS)
    tree.add("/pods/besteffort/a", QosClass.BE)
    tree.add("/pods/besteffort/b", QosClass.BE)
    tree.make("/pods/besteffort/just-made")  # no process in it yet
    assert set(tree.levels().values()) == {"/pods/besteffort"}
    target = tree.workloads[1].idle_at
    assert target is not None
    assert target.id == (tree.layout.mount / "pods/besteffort").stat().st_ino
    assert partial_idle(tree.workloads) == ()


def test_in_kubelets_cgroups_only_a_besteffort_pod_is_idle(tree: Tree) -> None:
    uid = "0123456789abcdef0123456789abcde"
    pods = {
        f"/kubepods/besteffort/pod{uid}0": True,
        f"/kubepods/burstable/pod{uid}1": False,
        f"/kubepods/pod{uid}2": False,
        f"/kubepods/besteffort/pod{uid}3/container": False,
    }
    tree.add(f"/kubepods/pod{uid}9", QosClass.LS)
    for path in pods:
        tree.add(path, QosClass.BE)
    assert tree.levels() == {path: path for path in pods}
    found = {w.path: w.may_idle for w in tree.workloads if w.qos is QosClass.BE}
    assert found == pods
    assert [w.path for w in tree.workloads if w.may_own_cpus] == [f"/kubepods/pod{uid}2"]
    assert partial_idle(tree.workloads) == ()
    values = WorkloadIndex(tree.workloads, {"": PROFILE}).idle_targets
    assert sorted(values.values()) == ["0 2", "0 2", "0 2", "1"]


def test_containers_are_ordered_by_the_weight_of_their_pod(tree: Tree) -> None:
    path = "/kubepods/burstable/pod0123456789abcdef0123456789abcde1"
    tree.add(f"/kubepods/pod{'0' * 32}", QosClass.LS)
    for name in ("one", "two"):
        tree.add(f"{path}/{name}", QosClass.BE)
    pod = Target(TargetKind.CGROUP, "cpu", 77, path)
    service, *containers = tree.workloads
    tree.workloads = (service, *(each._replace(container_of=pod) for each in containers))
    assert set(tree.levels().values()) == {path}
    values = WorkloadIndex(tree.workloads, {"": PROFILE}).idle_targets
    assert values == {CgroupId("cpu", 77): "0 2"}
    assert partial_idle(tree.workloads) == ()


def test_other_processes_are_found_by_the_next_scan(tree: Tree) -> None:
    tree.add("/web", QosClass.LS)
    tree.add("/batch/a", QosClass.BE)
    assert tree.levels() == {"/batch/a": "/batch"}
    tree.make("/batch/cron/deep", "9\n")
    assert tree.levels(now_s=19) == {"/batch/a": "/batch"}
    assert tree.levels(now_s=20) == {"/batch/a": "/batch/a"}
    assert partial_idle(tree.workloads) == ("/batch/a",)


def test_processes_beside_the_workloads_count(tree: Tree) -> None:
    tree.add("/web", QosClass.LS)
    tree.add("/batch/a", QosClass.BE)
    tree.make("/batch", "9\n")
    assert tree.levels() == {"/batch/a": "/batch/a"}


def test_a_new_workload_counts_at_once(tree: Tree) -> None:
    tree.add("/web", QosClass.LS)
    tree.add("/batch/a", QosClass.BE)
    assert tree.levels() == {"/batch/a": "/batch"}
    tree.add("/batch/web", QosClass.LS)
    assert tree.levels() == {"/batch/a": "/batch/a"}


def test_a_service_that_restarts_changes_no_placement(tree: Tree) -> None:
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
    assert partial_idle(tree.workloads) == ("/pods/batch",)


def test_an_unchanged_workload_stays_the_same_object(tree: Tree) -> None:
    tree.add("/pods/burstable/web", QosClass.LS)
    tree.add("/pods/besteffort/a", QosClass.BE)
    before = tree.placer.place(tree.workloads, 0)
    tree.add("/pods/besteffort/b", QosClass.BE)
    after = tree.placer.place(tree.workloads, SECOND)
    assert [new is old for new, old in zip(after, before, strict=False)] == [True, True]
    assert after[2].idle_at == after[1].idle_at is not None


def test_a_removed_workload_counts_while_it_has_processes(tree: Tree) -> None:
    tree.add("/web", QosClass.LS)
    tree.add("/batch/a", QosClass.BE)
    tree.add("/batch/b", QosClass.BE)
    assert set(tree.levels().values()) == {"/batch"}
    *others, left = tree.workloads
    tree.workloads = tuple(others)
    assert tree.levels(now_s=1) == {"/batch/a": "/batch/a"}
    tree.make(left.path)  # its last process ended
    tree.add("/batch/c", QosClass.BE)
    assert set(tree.levels(now_s=2).values()) == {"/batch"}


def test_other_processes_are_remembered_between_scans(tree: Tree) -> None:
    tree.add("/web", QosClass.LS)
    tree.add("/batch/a", QosClass.BE)
    tree.make("/batch/cron", "9\n")
    tree.make("/night/cron", "9\n")
    assert tree.levels() == {"/batch/a": "/batch/a"}
    tree.add("/batch/b", QosClass.BE)
    assert tree.levels(now_s=1) == {path: path for path in ("/batch/a", "/batch/b")}
    tree.add("/night/c", QosClass.BE)  # not scanned so far
    assert tree.levels(now_s=2)["/night/c"] == "/night/c"


@given(st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from([None, *QosClass])), max_size=12))
def test_incremental_changes_give_the_result_of_a_first_scan(
    changes: list[tuple[str, QosClass | None]],
) -> None:
    with TemporaryDirectory() as folder:
        tree = Tree(Path(folder))
        tree.add("/pods/web", QosClass.LS)
        for second, (path, qos) in enumerate(changes):
            tree.workloads = tuple(w for w in tree.workloads if w.path != path)
            if qos is None:
                tree.make(path)  # without processes
            else:
                tree.add(path, qos)
            found = tree.levels(now_s=second)
            tree.placer, placer = KnobPlacer(tree.layout), tree.placer
            assert tree.levels(now_s=second) == found
            tree.placer = placer


def test_a_parent_above_other_parents_of_best_effort_has_no_quota(tree_v2: Tree) -> None:
    """It would limit their workloads too, beyond what these are granted."""
    tree_v2.add("/batch/a", QosClass.BE)
    tree_v2.add("/batch/x/b", QosClass.BE)
    assert tree_v2.quotas() == {"/batch/a": None, "/batch/x/b": "/batch/x"}


def test_the_parent_of_nothing_but_best_effort_may_have_a_quota(tree_v2: Tree) -> None:
    tree_v2.add("/web", QosClass.LS)
    tree_v2.add("/batch/a", QosClass.BE)
    tree_v2.add("/batch/b", QosClass.BE)
    tree_v2.add("/alone", QosClass.BE)
    assert tree_v2.quotas() == {
        "/web": None,
        "/batch/a": "/batch",
        "/batch/b": "/batch",
        "/alone": None,  # the root holds everything
    }
    target = tree_v2.workloads[1].quota_at
    assert target is not None
    assert target.id == (tree_v2.layout.mount / "batch").stat().st_ino


@pytest.mark.parametrize("qos", [QosClass.LS, QosClass.SYSTEM])
def test_the_quota_of_a_parent_ends_when_another_class_starts_below(
    tree_v2: Tree, qos: QosClass
) -> None:
    tree_v2.add("/batch/a", QosClass.BE)
    assert tree_v2.quotas() == {"/batch/a": "/batch"}
    tree_v2.add("/batch/deep/web", qos)
    assert tree_v2.quotas(now_s=1)["/batch/a"] is None


def test_other_processes_below_a_parent_end_its_quota(tree_v2: Tree) -> None:
    tree_v2.add("/batch/a", QosClass.BE)
    assert tree_v2.quotas() == {"/batch/a": "/batch"}
    tree_v2.make("/batch/cron", "9\n")
    assert tree_v2.quotas(now_s=20) == {"/batch/a": None}


def test_a_workload_is_no_common_parent(tree_v2: Tree) -> None:
    tree_v2.add("/batch", QosClass.BE)
    tree_v2.make("/batch")
    tree_v2.add("/batch/a", QosClass.BE)
    assert tree_v2.quotas() == {"/batch": None, "/batch/a": None}


def test_of_kubelets_levels_only_that_of_besteffort_pods_may_have_a_quota(tree_v2: Tree) -> None:
    uid = "0123456789abcdef0123456789abcde"
    best_effort, burstable = (
        f"/kubepods.slice/kubepods-{level}.slice/kubepods-{level}-pod{uid}0.slice"
        for level in ("besteffort", "burstable")
    )
    tree_v2.add(best_effort, QosClass.BE)
    tree_v2.add(burstable, QosClass.BE)
    assert tree_v2.quotas() == {
        best_effort: "/kubepods.slice/kubepods-besteffort.slice",
        burstable: None,
    }
    tree_v2.add(f"{best_effort[:-7]}1.slice", QosClass.SYSTEM)
    assert tree_v2.quotas(now_s=1)[best_effort] is None


def test_on_v1_no_parent_has_a_quota(tree: Tree) -> None:
    tree.add("/batch/a", QosClass.BE)
    assert tree.quotas() == {"/batch/a": None}


def test_work_far_below_a_sibling_is_found(tree: Tree) -> None:
    tree.add("/service", QosClass.LS)
    tree.add("/a/batch", QosClass.BE)
    assert tree.levels() == {"/a/batch": "/a"}
    folder = tree.make("/a" + 1200 * "/d", "9\n")
    try:
        assert tree.levels(now_s=30) == {"/a/batch": "/a/batch"}
    finally:
        while folder.name == "d":  # shutil.rmtree, which pytest uses, is recursive
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
            folder = folder.parent


class MemoryTree(Tree):
    """A tree whose memory controller has a hierarchy of its own, as on v1."""

    def __init__(self, home: Path) -> None:
        self.memory = home / "memory"
        for folder in (self.memory, home / "cpu"):
            folder.mkdir()
        super().__init__(home / "cpu", memory=MemoryHierarchy("v1", self.memory))

    def mirror(self, path: str, procs: str = "7\n") -> None:
        """Make the cgroup *path* in the memory hierarchy too."""
        (self.memory / path[1:]).mkdir(parents=True, exist_ok=True)
        (self.memory / path[1:] / "cgroup.procs").write_text(procs)

    def limits(self, now_s: int = 0) -> dict[str, tuple[str, str] | None]:
        self.place(now_s)
        return {
            w.path: w.memory_at and (w.memory_at.scope, w.memory_at.path)
            for w in self.workloads
            if w.qos is QosClass.BE
        }


@pytest.fixture
def memory_tree(tmp_path: Path) -> MemoryTree:
    return MemoryTree(tmp_path)


def test_memory_is_limited_at_the_pure_level_of_its_hierarchy(memory_tree: MemoryTree) -> None:
    tree = memory_tree
    pods = [f"/kubepods/besteffort/pod{n}" for n in ("a" * 32, "b" * 32)]
    labelled = "/kubepods/burstable/pod" + "c" * 32
    for path in (*pods, labelled, "/batch/job", "/mixed/job"):
        tree.add(path, QosClass.BE)
        tree.mirror(path)
    tree.add("/mixed/web", QosClass.LS)
    tree.mirror("/batch", "")
    assert tree.limits() == {
        **dict.fromkeys(pods, ("memory", "/kubepods/besteffort")),
        labelled: ("memory", labelled),
        "/batch/job": ("memory", "/batch"),
        "/mixed/job": ("memory", "/mixed/job"),
    }


def test_a_cgroup_of_another_path_or_with_other_processes_is_not_limited(
    memory_tree: MemoryTree,
) -> None:
    tree = memory_tree
    for name in ("absent", "shared", "own"):
        tree.add(f"/mixed/{name}", QosClass.BE)
    tree.add("/mixed/web", QosClass.LS)
    tree.mirror("/mixed/shared", "7\n1\n")
    tree.mirror("/mixed/own")
    found = tree.limits()
    assert found == {
        "/mixed/absent": None,
        "/mixed/shared": None,
        "/mixed/own": ("memory", "/mixed/own"),
    }


def test_a_requested_limit_of_memory_has_the_cgroup_of_the_workload_itself(
    memory_tree: MemoryTree,
) -> None:
    tree = memory_tree
    for name in ("asks", "absent", "silent"):
        tree.add(f"/batch/{name}", QosClass.BE)
    tree.mirror("/batch", "")
    tree.mirror("/batch/asks")
    *asking, silent = tree.workloads
    tree.workloads = (*(each._replace(limit_memory_bytes=1 << 20) for each in asking), silent)
    tree.place()
    found = {
        each.name: None if at is None else (at.scope, at.path)
        for each in tree.workloads
        for at in (each.own_memory_at,)
    }
    assert found == {
        "/batch/asks": ("memory", "/batch/asks"),
        "/batch/absent": None,
        "/batch/silent": None,
    }


def test_memory_of_a_level_is_limited_no_more_when_a_service_comes(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "v2", MemoryHierarchy("v2", tmp_path))
    tree.add("/batch/job", QosClass.BE)
    tree.place()
    job = tree.workloads[0]
    assert job.memory_at is not None and job.quota_at is not None
    assert (job.memory_at.id, job.memory_at.path) == (job.quota_at.id, "/batch")
    tree.add("/batch/web", QosClass.LS)
    tree.place(1)
    job = tree.workloads[0]
    assert job.memory_at == Target(TargetKind.CGROUP, "v2", job.cgroup.id, job.path)
