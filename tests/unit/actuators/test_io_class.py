# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A class for disks of a service, on files below the executor: written, given back, undone."""

from pathlib import Path

from actuators.executor import Executor
from actuators.journal import Journal
from actuators.memory_io import IoMax, IoWeight
from tests.support.io_class import check_class


def test_a_class_is_written_given_back_and_undone_after_a_kill(tmp_path: Path) -> None:
    mount = tmp_path / "cgroup"
    cgroup = mount / "web"
    cgroup.mkdir(parents=True)
    (mount / "cgroup.controllers").write_text("cpu io\n")
    for name, text in {"cgroup.procs": "", "io.stat": "", "io.weight": "default 100\n"}.items():
        (cgroup / name).write_text(text)
    (cgroup / "io.max").touch()

    def executor() -> Executor:
        knobs = [knob(mount, "v2", "v2") for knob in (IoWeight, IoMax)]
        return Executor(Journal(tmp_path / "journal"), knobs)

    check_class(executor, "v2", mount, cgroup, "8:0")
