# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Disks for tests of io.max."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
import os
from pathlib import Path
import subprocess


@contextmanager
def disk_numbers(number: int) -> Iterator[list[str]]:
    """Create loop devices on files in memory; yields ``MAJOR:MINOR`` of each."""
    with ExitStack() as stack:
        yield [stack.enter_context(_disk(Path(f"/run/sweetpoint-disk{n}"))) for n in range(number)]


@contextmanager
def _disk(file: Path) -> Iterator[str]:
    with file.open("wb") as image:
        image.truncate(1 << 24)
    made = subprocess.run(
        ["losetup", "--find", "--show", file], check=True, capture_output=True, text=True
    )
    device = made.stdout.strip()
    number = os.stat(device).st_rdev
    try:
        yield f"{os.major(number)}:{os.minor(number)}"
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)
        file.unlink()
