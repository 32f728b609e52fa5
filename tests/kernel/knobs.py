# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Helpers of actuator tests: raw knob files, and processes that kill themselves at a step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
import errno
import json
import os
from pathlib import Path
import signal
import subprocess
import time
import warnings
import zlib

from actuators.base import Actuator, Trace, no_trace
from actuators.core_scheduling.cookie import CoreCookie
from actuators.executor import Executor
from actuators.journal import Journal
from actuators.registry import build
from controller.core.decision import Action, Outcome
from controller.core.model import Knob, KnobValue, Target, TargetKind
from controller.host.facts import CgroupLayout

FILES = (
    "cpu.cfs_quota_us",
    "cpu.cfs_period_us",
    "cpu.cfs_burst_us",
    "cpu.shares",
    "cpu.max",
    "cpu.max.burst",
    "cpu.weight",
    "cpu.idle",
    "memory.high",
    "io.weight",
    "io.max",
)


def dump(root: Path) -> dict[str, str]:
    """Return the contents of all knob files of *root* and below."""
    found = {}
    for directory, _, files in os.walk(root):
        for name in sorted(set(files) & set(FILES)):
            path = Path(directory, name)
            found[str(path.relative_to(root))] = path.read_text().strip()
    return found


def set_quota(cgroup: Path, quota_us: int | None, period_us: int, burst_us: int = 0) -> None:
    """Set a quota without code of sweetpoint, as another program does."""
    if (cgroup / "cpu.max").exists():
        (cgroup / "cpu.max").write_text(f"{quota_us or 'max'} {period_us}")
        (cgroup / "cpu.max.burst").write_text(str(burst_us))
        return
    (cgroup / "cpu.cfs_period_us").write_text(str(period_us))
    (cgroup / "cpu.cfs_quota_us").write_text(str(quota_us or -1))
    (cgroup / "cpu.cfs_burst_us").write_text(str(burst_us))


def set_weight(cgroup: Path, weight: int) -> None:
    """Set cpu.shares or cpu.weight."""
    name = "cpu.shares" if (cgroup / "cpu.shares").exists() else "cpu.weight"
    (cgroup / name).write_text(str(weight))


def make_child(parent: Path, name: str) -> Path:
    """Make a cgroup whose children have the same controllers."""
    child = parent / name
    child.mkdir()
    control = child / "cgroup.subtree_control"
    if control.exists():
        has = set((child / "cgroup.controllers").read_text().split())
        control.write_text(" ".join(f"+{name}" for name in sorted(has & {"cpu", "memory", "io"})))
    return child


def target_of(layout: CgroupLayout, cgroup: Path) -> Target:
    """Return the target of an existing cgroup."""
    path = "/" + str(cgroup.relative_to(layout.mount))
    return Target(TargetKind.CGROUP, layout.hierarchy, cgroup.stat().st_ino, path)


def executor(layout: CgroupLayout, state_dir: Path, trace: Trace = no_trace) -> Executor:
    """Return a new executor, as a new process makes it."""
    return Executor(Journal(state_dir / "journal", trace), every_actuator(layout, state_dir), trace)


def every_actuator(layout: CgroupLayout, state_dir: Path) -> tuple[Actuator, ...]:
    """Return the actuators of a process that keeps its state in *state_dir*."""
    return build(layout, CoreCookie(state_dir))


def action(target: Target, knob: Knob, previous: str, value: str) -> Action:
    """Return an action as the planner makes it."""
    return Action(
        target=target,
        knob=knob,
        previous=KnobValue(previous),
        value=KnobValue(value),
        reason="test",
    )


def make_newer(record: Path, *, in_place: bool = False, undo: bool = False) -> Path:
    """Make a record one of the format 2, or with *undo* one of the format 1 again.

    :param in_place: whether its name stays that of the format 1.
    :returns: the new path.
    """
    body = json.loads(record.read_bytes())
    del body["crc"]
    body["format"] = 1 if undo else 2
    body["crc"] = zlib.crc32(json.dumps(body, sort_keys=True).encode())
    record.write_text(json.dumps(body))
    stem = record.name.removesuffix(".json").removesuffix(".v2")
    return record.rename(record.with_name(stem + (".json" if undo or in_place else ".v2.json")))


@contextmanager
def tmpfs(path: Path) -> Iterator[Path]:
    """Mount a tmpfs of 64 KiB and 32 inodes on the new directory *path*."""
    path.mkdir()
    options = "size=64k,nr_inodes=32,mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "sweetpoint-test", path], check=True)
    try:
        yield path
    finally:
        _unmount(path)


@contextmanager
def unwritable(path: Path, obstacle: str) -> Iterator[int]:
    """Make the tmpfs *path* ``full``, ``read-only`` or without inodes; yield the error number.

    The file system is covered by a read-only mount of itself, because processes that have a file
    open for writing, as the agent has the lock, forbid a remount.
    """
    ballast = path / "ballast"
    if obstacle == "read-only":
        # Made elsewhere, where no process opens files: open ones would forbid the remount.
        aside = path.with_name(f"{path.name}-read-only")
        aside.mkdir()
        try:
            subprocess.run(["mount", "--bind", path, aside], check=True)
            try:
                subprocess.run(["mount", "-o", "remount,bind,ro", aside], check=True)
                subprocess.run(["mount", "--bind", aside, path], check=True)
            finally:
                _unmount(aside)
        finally:
            aside.rmdir()
        try:
            yield errno.EROFS
        finally:
            _unmount(path)
        return
    ballast.mkdir()
    with suppress(OSError):
        if obstacle == "full":
            with (ballast / "file").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        for number in range(1000):
            (ballast / str(number)).touch()
    try:
        yield errno.ENOSPC
    finally:
        for each in ballast.iterdir():
            each.unlink()
        ballast.rmdir()


def _unmount(path: Path) -> None:
    # Killed processes, of which nothing waits for the end, close their files a moment later.
    for _ in range(50):
        if subprocess.run(["umount", path], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.02)
    subprocess.run(["umount", "-l", path], check=True)


def applied(outcome: Outcome) -> str | None:
    """Return what was written; the outcome must be a success on a value that was known."""
    assert outcome.failure is None, outcome
    assert outcome.foreign is None, outcome
    return outcome.applied


def die_at(step: int, work: Callable[[Trace], None]) -> str | None:
    """Run *work* in a child process that kills itself at the *step*-th step.

    Returns the name of that step, or None if *work* ended before it.
    """
    read_fd, write_fd = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 and later warn if threads exist, which the library of numpy may have started.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        seen = 0

        def trace(name: str) -> None:
            nonlocal seen
            if seen == step:
                os.write(write_fd, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

        try:
            work(trace)
        except BaseException as error:
            os.write(write_fd, f"broken: {error!r}".encode())
            os._exit(1)
        os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        name = pipe.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert not name.startswith("broken"), name
    assert code in (0, -signal.SIGKILL)
    return name if code else None
