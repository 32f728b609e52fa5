# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Membership of processes in cgroups whose names another user chose."""

from pathlib import Path

import pytest

from actuators.base import RefusedError
from actuators.freezer import cgroup_in, check_spares_agent
from controller.host.facts import find_cgroup_layout


@pytest.mark.parametrize("name", [b"job", b"\xff", b"a b", b"a:b", b"\x0b", b"\x1c1:name=x:/y"])
@pytest.mark.parametrize("hierarchy", ["v2", "freezer"])
def test_any_name_of_a_cgroup_is_understood(name: bytes, hierarchy: str) -> None:
    data = b"7:name=systemd:/\n5:cpu,freezer:/batch/" + name + b"\n0::/batch/" + name + b"\n"
    expected = "/batch/" + name.decode(errors="surrogateescape")
    assert cgroup_in(data, hierarchy) == expected


def test_a_process_may_be_in_no_cgroup_of_a_hierarchy() -> None:
    assert cgroup_in(b"0::/batch\n", "freezer") == ""


def test_the_agent_spares_itself() -> None:
    layout = find_cgroup_layout()
    own = cgroup_in(Path("/proc/self/cgroup").read_bytes(), layout.hierarchy)
    with pytest.raises(RefusedError, match="the agent itself runs in it"):
        check_spares_agent(layout, own.rstrip("/"))
    check_spares_agent(layout, f"{own}/below")
