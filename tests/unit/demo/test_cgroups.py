# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The mounts that the demonstration uses."""

from pathlib import Path

import pytest

from controller.demo.cgroups import DemoError, find_cpuacct_mount

CPU = Path("/cgroups/cpu")
ODD = b"50 23 0:50 / /home/user/\xff\x0bx rw,nosuid - fuse.sshfs host rw\n"


@pytest.mark.parametrize(
    ("row", "mount"),
    [
        (b"32 31 0:29 / /cgroups/cpu rw - cgroup cgroup rw,cpu,cpuacct\n", None),
        (
            b"33 31 0:30 / /cgroups/cpuacct rw - cgroup cgroup rw,cpuacct\n",
            CPU.with_name("cpuacct"),
        ),
    ],
)
def test_the_mount_of_cpuacct_beside_one_with_an_odd_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: bytes, mount: Path | None
) -> None:
    monkeypatch.setattr("controller.host.facts._MOUNTINFO", tmp_path / "mountinfo")
    (tmp_path / "mountinfo").write_bytes(ODD + row)
    assert find_cpuacct_mount(CPU) == mount


def test_a_host_without_cpuacct() -> None:
    with pytest.raises(DemoError, match="not mounted"):
        find_cpuacct_mount(CPU, "32 31 0:29 / /cgroups/cpu rw - cgroup cgroup rw,cpu\n")
