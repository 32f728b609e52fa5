# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Runner of the tests in the test kernel: the host collects them, the guest executes them.

The host boots the kernel once for all selected tests of ``tests/vm/guest``. The emulator keeps one
CPU busy for minutes, and the tests of the host run beside it (``tests/support/beside.py``).
"""

from collections.abc import Mapping, Sequence
import os
from pathlib import Path
import shlex
import subprocess
import sys

import pytest

from controller.probes.bpf.loader import use_cache
from tests.support.beside import Beside, Child, Reporter
from tests.support.compiled import keep_in, shared

IN_GUEST = "SWEETPOINT_VM_REPORTS"
# In the guest: where compiled programs are kept, because compiling takes it minutes.
PROGRAMS = "SWEETPOINT_VM_PROGRAMS"
TREE = Path(__file__).parents[2]
# Only a guest that hangs reaches them, also on a busy machine.
TIMEOUT_S = 5400.0
SOAK_TIMEOUT_S = 14400.0


def in_guest() -> bool:
    return IN_GUEST in os.environ


def pytest_configure(config: pytest.Config) -> None:
    if in_guest():
        config.pluginmanager.register(Reporter(config, Path(os.environ[IN_GUEST])))
        _prepare_guest()


def pytest_collection_finish(session: pytest.Session) -> None:
    chosen = [each for each in session.items if each.get_closest_marker("vm") is not None]
    if chosen and not in_guest() and not _is_skipped():
        soak = any(each.get_closest_marker("soak") for each in chosen)
        limit_s = SOAK_TIMEOUT_S if soak else TIMEOUT_S
        guest = Child("guest", _command, _environ, limit_s, cleans_up=False)
        beside = Beside(guest, [each.nodeid for each in chosen])
        session.config.pluginmanager.register(beside)
        session.config.add_cleanup(beside.end)


def _is_skipped() -> bool:
    # In this case the root conftest fails or skips the tests in the usual protocol.
    from tests.conftest import vm_tests_reason

    switch = os.environ.get("SWEETPOINT_VM_TESTS", "")
    return switch not in ("", "1") or vm_tests_reason() is not None


def _command(directory: Path) -> Sequence[str]:
    command = f"{IN_GUEST}={directory} SWEETPOINT_VM_TESTS=1 SWEETPOINT_KERNEL_TESTS=1"
    command += f" SWEETPOINT_KUBE_TESTS={os.environ.get('SWEETPOINT_KUBE_TESTS', '')}"
    command += f" {PROGRAMS}={shlex.quote(str(_programs()))}"
    command += f" PYTHONDONTWRITEBYTECODE=1 {shlex.quote(sys.executable)} -m pytest -m vm"
    command += f" -p no:cacheprovider -o tmp_path_retention_policy=none @{directory}/ids"
    return [str(TREE / "tools" / "test-kernel"), "run", command]


def _environ(directory: Path) -> Mapping[str, str]:
    return {"SWEETPOINT_VM_SHARE": f"{directory}:{_programs()}"}


def _programs() -> Path:
    return shared("guest")


def _prepare_guest() -> None:
    # Set-up that the init of a distribution does otherwise.
    Path("/run/sweetpoint").mkdir(exist_ok=True)
    for kind, point in (
        ("debugfs", "/sys/kernel/debug"),
        ("tracefs", "/sys/kernel/tracing"),
        ("bpf", "/sys/fs/bpf"),
    ):
        if not os.path.ismount(point):
            subprocess.run(["mount", "-t", kind, kind, point], check=True)
    # One compilation of a program for all runs.
    keep_in(Path(os.environ[PROGRAMS]))
    use_cache(shared("tests"))
    # The root cgroup may have processes and still enable controllers for its children.
    control = Path("/sys/fs/cgroup/cgroup.subtree_control")
    control.write_text("+cpu +cpuset +memory +io +pids")
