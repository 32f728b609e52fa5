# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The moves probe: tasks that join and leave cgroups, and events that are not reported."""

from collections.abc import Iterator
import ctypes
import os
from pathlib import Path
import signal
import threading

import pytest

from controller.core.model import CgroupId, QosClass, Workload
from controller.host.facts import CgroupLayout, libc
from controller.probes.cgroup_moves import Move, MoveProbe, Moves

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]

_SYS_CLONE3 = 435
_CLONE_INTO_CGROUP = 0x200000000


class Cgroups:
    """Cgroups of a test, and the probe that follows them."""

    def __init__(self, layout: CgroupLayout, root: Path, probe: MoveProbe) -> None:
        self.layout, self.root, self.probe = layout, root, probe

    def make(self, name: str) -> Path:
        path = self.root / name
        path.mkdir()
        return path

    def id(self, path: Path) -> CgroupId:
        return CgroupId(self.layout.hierarchy, path.stat().st_ino)

    def follow(self, *paths: Path) -> Moves:
        """Follow *paths* and no others, and return the moves up to then."""
        mount = self.layout.mount
        self.probe.set_workloads(
            Workload(p.name, self.id(p), f"/{p.relative_to(mount)}", QosClass.BE, p.name, "")
            for p in paths
        )
        return self.probe.poll()

    def moves(self, pid: int) -> list[Move]:
        """Return the moves of *pid* since the last poll, without tasks of other tests."""
        return [move for move in self.probe.poll().moves if move.tgid == pid]


@pytest.fixture(scope="module")
def probe(cgroup_layout: CgroupLayout) -> Iterator[MoveProbe]:
    probe = MoveProbe(cgroup_layout)
    yield probe
    probe.close()


@pytest.fixture
def cgroups(cgroup_layout: CgroupLayout, cgroup_root: Path, probe: MoveProbe) -> Cgroups:
    return Cgroups(cgroup_layout, cgroup_root, probe)


@pytest.fixture
def sleeper() -> Iterator[int]:
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def enter(cgroup: Path, pid: int) -> None:
    (cgroup / "cgroup.procs").write_text(str(pid))


def test_moves_in_out_and_below_are_reported_with_the_workload(
    cgroups: Cgroups, sleeper: int
) -> None:
    inside, outside = cgroups.make("inside"), cgroups.make("outside")
    below = inside / "below"
    below.mkdir()
    cgroups.follow(inside)
    enter(inside, sleeper)
    enter(outside, sleeper)
    enter(below, sleeper)
    reading = cgroups.probe.poll()
    assert reading.complete
    where = [move.cgroup for move in reading.moves if move.tgid == sleeper]
    assert where == [cgroups.id(inside), None, cgroups.id(inside)]
    assert all(move.whole for move in reading.moves if move.tgid == sleeper)
    cgroups.follow()
    enter(inside, sleeper)
    assert [move.cgroup for move in cgroups.moves(sleeper)] == [None]


def test_ordinary_forks_are_not_reported(cgroups: Cgroups, sleeper: int) -> None:
    inside = cgroups.make("inside")
    cgroups.follow(inside)
    enter(inside, sleeper)
    child = os.fork()
    if child == 0:
        enter(inside, os.getpid())
        for _ in range(3):
            if os.fork() == 0:
                os._exit(0)
            os.wait()
        os._exit(0)
    os.waitpid(child, 0)
    reading = cgroups.probe.poll()
    assert {move.tgid for move in reading.moves if move.cgroup} == {sleeper, child}


def test_a_single_moved_thread_is_reported_as_such(cgroups: Cgroups) -> None:
    if cgroups.layout.version != "v1":
        pytest.skip("cgroup v2 moves whole processes here")
    inside = cgroups.make("inside")
    cgroups.follow(inside)
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    try:
        (inside / "tasks").write_text(str(thread.native_id))
        moves = cgroups.moves(os.getpid())
    finally:
        go.set()
        thread.join()
    assert moves == [Move(cgroups.id(inside), thread.native_id or 0, os.getpid(), False)]


def test_a_task_created_in_another_cgroup_than_its_parent_is_reported(cgroups: Cgroups) -> None:
    if cgroups.layout.version != "v2":
        pytest.skip("CLONE_INTO_CGROUP works in the cgroup2 tree only")
    inside = cgroups.make("inside")
    cgroups.follow(inside)
    pid = clone_into(inside)
    os.waitpid(pid, 0)
    assert cgroups.moves(pid) == [Move(cgroups.id(inside), pid, pid, False)]


def clone_into(cgroup: Path) -> int:
    """Fork a process into *cgroup* that ends at once (struct clone_args)."""
    fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    arguments = (ctypes.c_uint64 * 11)(_CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD)
    arguments[10] = fd
    pid: int = libc().syscall(_SYS_CLONE3, arguments, ctypes.sizeof(arguments))
    if pid == 0:
        os._exit(0)
    os.close(fd)
    assert pid > 0
    return pid


def test_more_moves_than_fit_make_the_reading_incomplete_once(
    cgroups: Cgroups, sleeper: int
) -> None:
    here, there = cgroups.make("here"), cgroups.make("there")
    cgroups.follow(here, there)
    with (here / "cgroup.procs").open("w") as first, (there / "cgroup.procs").open("w") as second:
        for _ in range(1500):
            for procs in (first, second):
                procs.write(str(sleeper))
                procs.flush()
    flooded = cgroups.probe.poll()
    assert not flooded.complete
    assert 500 < len(flooded.moves) < 3000
    enter(here, sleeper)
    reading = cgroups.probe.poll()
    assert reading.complete
    assert [move.cgroup for move in reading.moves if move.tgid == sleeper] == [cgroups.id(here)]
