# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the benchmarks."""

from collections.abc import Iterator
from pathlib import Path
import subprocess
import tempfile

import pytest

from controller.host.facts import CgroupLayout
from tests.bench.neighbours import SOURCE
from tests.bench.served import Scene
from tests.kernel.agent import Site
from tests.support.cgroups import remove_cgroup

_STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Site:
    return Site(cgroup_root, cgroup_layout, tmp_path)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program of ``lateness.c``."""
    binary = tmp_path / "lateness"
    subprocess.run(["gcc", "-O2", "-pthread", "-o", binary, SOURCE], check=True)
    return binary


@pytest.fixture
def bpf_statistics() -> Iterator[None]:
    """Have the kernel count the runs of BPF programs and their time."""
    before = _STATS.read_text()
    _STATS.write_text("1")
    yield
    _STATS.write_text(before)


@pytest.fixture
def scene(cgroup_layout: CgroupLayout, cgroup_root: Path) -> Iterator[Scene]:
    if cgroup_layout.unified is None:
        pytest.skip("no cgroup2 tree is mounted")
    cgroup2 = cgroup_layout.unified / cgroup_root.name
    # nginx's workers may enter it, unlike pytest's own directories.
    with tempfile.TemporaryDirectory(prefix="sweetpoint-bench-") as home:
        Path(home).chmod(0o755)
        yield Scene(cgroup_root, cgroup2, cgroup_layout, Path(home))
    remove_cgroup(cgroup2)
