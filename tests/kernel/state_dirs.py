# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""State directories on a small file system that becomes full, read-only or short of inodes."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
import errno
from pathlib import Path
import subprocess
import time

__all__ = ("OBSTACLES", "tmpfs", "unwritable")

OBSTACLES = ("full", "no inodes", "read-only")


@contextmanager
def tmpfs(path: Path, size: str = "size=64k,nr_inodes=32") -> Iterator[Path]:
    """Mount a tmpfs, by default of 64 KiB and 32 inodes, on *path*, which is made if missing."""
    path.mkdir(exist_ok=True)
    options = f"{size},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "sweetpoint-test", path], check=True)
    try:
        yield path
    finally:
        _unmount(path)


@contextmanager
def unwritable(path: Path, obstacle: str) -> Iterator[int]:
    """Let the tmpfs *path* have one of ``OBSTACLES``; yield the error number of a write.

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
