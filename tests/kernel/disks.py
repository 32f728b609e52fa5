# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Disks in memory, and readers of them in cgroups of a test."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
import itertools
import os
from pathlib import Path
import subprocess
from typing import NamedTuple

__all__ = ("Disk", "disk_at", "made_disks", "read_blocks", "reading")

# A file system in memory: a loop device on a real disk would pass its requests on to that.
_MEMORY = Path("/dev/shm")
_numbers = itertools.count()


class Disk(NamedTuple):
    """A disk: its path, and ``MAJOR:MINOR``."""

    device: str
    number: str


def disk_at(device: str) -> Disk:
    """Return the disk with the path *device*."""
    number = os.stat(device).st_rdev
    return Disk(device, f"{os.major(number)}:{os.minor(number)}")


@contextmanager
def made_disks(number: int, mib: int = 16) -> Iterator[list[Disk]]:
    """Create loop devices of *mib* MiB on files in memory."""
    with ExitStack() as stack:
        yield [stack.enter_context(_made_disk(mib)) for _ in range(number)]


@contextmanager
def _made_disk(mib: int) -> Iterator[Disk]:
    folder = _MEMORY if _MEMORY.is_dir() else Path("/run")
    file = folder / f"sweetpoint-disk{os.getpid()}-{next(_numbers)}"
    with file.open("wb") as image:
        image.truncate(mib << 20)
    try:
        made = subprocess.run(
            ["losetup", "--find", "--show", file], check=True, capture_output=True, text=True
        )
        device = made.stdout.strip()
        try:
            yield disk_at(device)
        finally:
            subprocess.run(["losetup", "--detach", device], check=True)
    finally:
        file.unlink()


def read_blocks(disk: Disk, cgroup: Path, count: int, size: int = 4096) -> None:
    """Read *count* blocks of *size* bytes, one after the other, from a process in *cgroup*."""
    subprocess.run(_reader(disk, cgroup, words=f"count={count} bs={size}"), check=True)


@contextmanager
def reading(disk: Disk, *cgroups: Path, size: int = 1 << 20) -> Iterator[None]:
    """Read the disk from begin to end again and again, from a process in *cgroups*."""
    process = subprocess.Popen(_reader(disk, *cgroups, words=f"bs={size}", again=True))
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _reader(disk: Disk, *cgroups: Path, words: str, again: bool = False) -> list[str]:
    joins = "".join(f"echo $$ > {cgroup}/cgroup.procs; " for cgroup in cgroups)
    read = f"dd if={disk.device} of=/dev/null iflag=direct status=none {words}"
    return ["sh", "-c", joins + (f"while {read}; do :; done" if again else f"exec {read}")]
