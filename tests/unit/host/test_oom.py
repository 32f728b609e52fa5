# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The memory cgroup of a process and its counters, in files as of both versions of cgroups."""

from pathlib import Path

import pytest

from controller.host.oom import OomCounters, find_memory_cgroup, read_oom

PID = 77
POD = "0b8d3a52-3f0e-4c6e-9d7a-1f2e3d4c5b6a"


def make_v2(folder: Path, limit: str = "max") -> Path:
    folder.mkdir(parents=True)
    (folder / "memory.events").write_text("low 0\nhigh 1\nmax 9\noom 3\noom_kill 2\n")
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "cgroup.procs").write_text(f"1\n{PID}\n")
    return folder


def make_v1(folder: Path, limit: int = 0x7FFFFFFFFFFFF000) -> Path:
    folder.mkdir(parents=True)
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (folder / "memory.max_usage_in_bytes").write_text("67100000\n")
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    return folder


def process(tmp_path: Path, cgroups: str, mountinfo: str) -> Path:
    """Make the files of a process and return the directory in place of /proc."""
    proc = tmp_path / "proc"
    (proc / str(PID)).mkdir(parents=True)
    (proc / str(PID) / "cgroup").write_text(cgroups)
    (proc / str(PID) / "mountinfo").write_text(mountinfo)
    return proc


def mount(root: str, point: Path, kind: str, options: str) -> str:
    return f"1 2 0:3 {root} {point} rw - {kind} {kind} {options}\n"


def test_counters_of_both_versions(tmp_path: Path) -> None:
    assert read_oom(make_v2(tmp_path / "a")) == OomCounters(2, 3, None)
    assert read_oom(make_v2(tmp_path / "b", "67108864")) == OomCounters(2, 3, 64 << 20)
    assert read_oom(make_v1(tmp_path / "c")) == OomCounters(2, 0, None)
    assert read_oom(make_v1(tmp_path / "d", 64 << 20)) == OomCounters(2, 2, 64 << 20)
    assert read_oom(make_v1(tmp_path / "e", 96 << 20)) == OomCounters(2, 0, 96 << 20)


def test_what_the_kernel_does_not_show_is_not_known(tmp_path: Path) -> None:
    assert read_oom(None) is None
    assert read_oom(tmp_path) is None  # the root of v2
    (make_v1(tmp_path / "old") / "memory.oom_control").write_text("under_oom 0\n")
    assert read_oom(tmp_path / "old") is None


def test_on_v1_it_is_that_of_the_memory_controller(tmp_path: Path) -> None:
    own = make_v1(tmp_path / "memory" / "kubepods" / "pod1")
    mounts = mount("/", tmp_path / "unified", "cgroup2", "rw")
    mounts += mount("/", tmp_path / "cpu", "cgroup", "rw,cpu")
    mounts += mount("/", tmp_path / "memory", "cgroup", "rw,memory")
    proc = process(tmp_path, "4:memory:/kubepods/pod1\n1:cpu:/x\n0::/y\n", mounts)
    assert find_memory_cgroup(PID, proc=proc) == own


@pytest.mark.parametrize("root", ["/", "/system.slice"])
def test_on_v2_with_a_mount_of_the_whole_or_a_part(tmp_path: Path, root: str) -> None:
    own = make_v2(tmp_path / "cgroup" / "/system.slice/a.service".removeprefix(root).lstrip("/"))
    mounts = mount(root, tmp_path / "cgroup", "cgroup2", "rw")
    proc = process(tmp_path, "0::/system.slice/a.service\n", mounts)
    assert find_memory_cgroup(PID, proc=proc) == own


def test_in_a_container_with_a_cgroup_namespace_of_its_own(tmp_path: Path) -> None:
    level = tmp_path / "cgroup" / "kubepods.slice" / "kubepods-burstable.slice"
    make_v2(level / "kubepods-burstable-pod1.slice" / "cri-containerd-a.scope")
    pod = level / f"kubepods-burstable-pod{POD.replace('-', '_')}.slice"
    (make_v2(pod / "cri-containerd-b.scope") / "cgroup.procs").write_text("5\n")
    own = make_v2(pod / "cri-containerd-c.scope")
    mounts = mount("/../../../..", tmp_path / "cgroup", "cgroup2", "rw")
    proc = process(tmp_path, "0::/\n", mounts)
    assert find_memory_cgroup(PID, POD, proc) == own
    assert find_memory_cgroup(PID, None, proc) is None


def test_where_it_is_not_visible(tmp_path: Path) -> None:
    proc = process(tmp_path, "0::/gone\n", mount("/", tmp_path, "cgroup2", "rw"))
    assert find_memory_cgroup(PID, proc=proc) is None
    assert find_memory_cgroup(PID + 1, proc=proc) is None
