# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of several unit tests."""

from collections.abc import Iterator
from pathlib import Path
import subprocess

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB; needs root."""
    mount = tmp_path / "disk"
    mount.mkdir()
    options = "size=64k,mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "sweetpoint-test", mount], check=True)
    yield mount
    subprocess.run(["umount", mount], check=True)
