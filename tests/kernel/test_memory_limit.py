# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""An agent that the kernel kills at the memory limit of its cgroup, and one that somebody kills."""

from collections.abc import Iterator
import os
from pathlib import Path
import signal

import pytest

from controller.host.facts import mounts
from tests.kernel.guarded_run import guarded
from tests.kernel.knobs import dump, make_limited
from tests.support.cgroups import remove_cgroup

pytestmark = pytest.mark.kernel

LIMIT_BYTES = 96 << 20


@pytest.fixture
def limited(cgroup_root: Path) -> Iterator[Path]:
    """A cgroup with a memory limit; on v1 in the hierarchy of that controller."""
    v1 = [each.point for each in mounts(None, {"cgroup"}) if "memory" in each.options]
    folder = v1[0] / f"sweetpoint-test-{os.getpid()}" if v1 else cgroup_root / "limited"
    if not v1:
        for above in (cgroup_root.parent, cgroup_root):
            (above / "cgroup.subtree_control").write_text("+memory")
    folder.mkdir()
    try:
        files = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if v1 else ("memory.max",)
        for name in files:
            if (folder / name).exists():
                (folder / name).write_text(str(LIMIT_BYTES))
        yield folder
    finally:
        remove_cgroup(folder)


def test_the_log_says_why_it_ended(cgroup_root: Path, limited: Path, tmp_path: Path) -> None:
    pod = make_limited(cgroup_root)
    within = ("sh", "-ec", f'echo $$ > {limited}/cgroup.procs; exec "$@"', "-")
    with guarded(tmp_path, pod, "hungry", within) as program:
        program.squeezed()
        program.wait_restored()
        code, log = program.stop()
    assert code == 0
    assert dump(pod) == program.before
    assert "the agent was ended by the memory limit of 96 MiB" in log
    assert "raise resources.limits.memory" in log


def test_a_kill_by_another_program_is_told_apart(
    cgroup_root: Path, limited: Path, tmp_path: Path
) -> None:
    pod = make_limited(cgroup_root)
    within = ("sh", "-ec", f'echo $$ > {limited}/cgroup.procs; exec "$@"', "-")
    with guarded(tmp_path, pod, within=within) as program:
        os.kill(program.squeezed(), signal.SIGKILL)
        program.wait_restored()
        _, log = program.stop()
    assert "ended with -9 (Killed), sent by another program" in log
