# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Membership of processes in cgroups whose names another user chose."""

import pytest

from actuators.freezer import cgroup_in


@pytest.mark.parametrize("name", [b"job", b"\xff", b"a b", b"a:b", b"\x0b", b"\x1c1:name=x:/y"])
@pytest.mark.parametrize("hierarchy", ["v2", "freezer"])
def test_any_name_of_a_cgroup_is_understood(name: bytes, hierarchy: str) -> None:
    data = b"7:name=systemd:/\n5:cpu,freezer:/batch/" + name + b"\n0::/batch/" + name + b"\n"
    expected = "/batch/" + name.decode(errors="surrogateescape")
    assert cgroup_in(data, hierarchy) == expected


def test_a_process_may_be_in_no_cgroup_of_a_hierarchy() -> None:
    assert cgroup_in(b"0::/batch\n", "freezer") == ""
