# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The cgroup layout found from the mount tables of different distributions, and the CPUs."""

from pathlib import Path

import pytest

from controller.host.facts import (
    CgroupLayout,
    HostError,
    cpu_model,
    find_cgroup_layout,
    online_cpus,
    possible_cpus,
)

V1_TOGETHER = """\
25 20 0:22 / /sys rw,nosuid - sysfs sysfs rw
26 25 0:23 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
30 26 0:27 / /sys/fs/cgroup/cpuset rw,nosuid - cgroup cgroup rw,cpuset
31 26 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
"""
HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""


def v2_host(tmp_path: Path, controllers: str) -> str:
    (tmp_path / "cgroup.controllers").write_text(controllers)
    return f"29 24 0:26 / {tmp_path} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_v1_with_cpuacct_in_the_same_hierarchy() -> None:
    assert find_cgroup_layout(V1_TOGETHER) == CgroupLayout(
        hierarchy="cpu", mount=Path("/sys/fs/cgroup/cpu,cpuacct"), version="v1", unified=None
    )


def test_hybrid_uses_v1_cpu_and_keeps_the_unified_tree() -> None:
    assert find_cgroup_layout(HYBRID) == CgroupLayout(
        hierarchy="cpu",
        mount=Path("/sys/fs/cgroup/cpu"),
        version="v1",
        unified=Path("/sys/fs/cgroup/unified"),
    )


def test_v2(tmp_path: Path) -> None:
    layout = find_cgroup_layout(v2_host(tmp_path, "cpuset cpu io memory\n"))
    assert layout == CgroupLayout(hierarchy="v2", mount=tmp_path, version="v2", unified=tmp_path)


def test_the_whole_tree_is_preferred_to_a_bind_mounted_part() -> None:
    part = "32 31 0:29 /docker/7f /mnt rw - cgroup cgroup rw,cpu\n"
    assert find_cgroup_layout(part + HYBRID).mount == Path("/sys/fs/cgroup/cpu")
    assert find_cgroup_layout(part).mount == Path("/mnt")


def test_a_hidden_mount_is_ignored(tmp_path: Path) -> None:
    v1 = "32 31 0:29 / /mnt/cpu rw - cgroup cgroup rw,cpu\n"
    over = "50 31 0:60 / /mnt/cpu rw - tmpfs tmpfs rw\n"
    assert find_cgroup_layout(v1 + over + v2_host(tmp_path, "cpu\n")).version == "v2"


def test_spaces_in_a_mount_point() -> None:
    text = "32 31 0:29 / /mnt/my\\040cpu rw - cgroup cgroup rw,cpu\n"
    assert find_cgroup_layout(text).mount == Path("/mnt/my cpu")


def test_v2_without_the_cpu_controller_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"does not list cpu: enable it with 'echo \+cpu'"):
        find_cgroup_layout(v2_host(tmp_path, "memory pids\n"))


@pytest.mark.parametrize(
    "text", ["", "garbage\n", "1 2 3 - cgroup\n", "25 20 0:22 / /sys rw - x\n"]
)
def test_no_cgroups_at_all(text: str) -> None:
    with pytest.raises(HostError, match="no cgroup hierarchy with the cpu controller is mounted"):
        find_cgroup_layout(text)


def test_cpus_of_this_machine() -> None:
    online = online_cpus()
    assert online
    assert set(online) <= set(possible_cpus())


@pytest.mark.parametrize(
    ("text", "model"),
    [
        (
            "processor\t: 0\nmodel\t\t: 106\nmodel name\t: Some CPU @ 2.6 GHz\n",
            "Some CPU @ 2.6 GHz",
        ),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n", "0xd40"),
        ("model name : " + "x" * 500, "x" * 128),
        ("", ""),
    ],
)
def test_the_model_of_the_cpu(text: str, model: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_model(tmp_path / "cpuinfo") == model
    assert cpu_model(tmp_path / "none") == ""


@pytest.mark.parametrize("name", [b"\xff", b"\x0b1\x1f2\x1f0:3\x1f/\x1f/sys/fs/cgroup/cpu"])
def test_the_mount_of_a_user_with_an_odd_name_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    table = tmp_path / "mountinfo"
    odd = b"50 23 0:50 / /home/user/" + name + b" rw,nosuid - fuse.sshfs host rw\n"
    table.write_bytes(HYBRID.encode() + odd)
    monkeypatch.setattr("controller.host.facts._MOUNTINFO", table)
    assert find_cgroup_layout() == find_cgroup_layout(HYBRID)
