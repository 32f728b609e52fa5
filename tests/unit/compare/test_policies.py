# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The rules of other projects on files of a cgroup."""

import os
from pathlib import Path
import time

import pytest

from tests.compare.policies import POLICIES, CpuKnobs, Node


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with the time in ns; two CPUs."""
    now = [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return now


def node(directory: Path, used: list[int], waited: list[int]) -> Node:
    return Node(
        knobs=CpuKnobs(directory, "v1"),
        service_oncpu_ns=lambda: used[0],
        service_wait_ns=lambda: waited[0],
    )


def test_koordinator_leaves_what_is_below_the_threshold(tmp_path: Path, clock: list[int]) -> None:
    used = [0]
    rule = POLICIES["koordinator 65 %"].rule
    assert rule is not None
    koordinator = rule(node(tmp_path, used, [0]))
    quota = tmp_path / "cpu.cfs_quota_us"
    clock[0], used[0] = 10**9, 3 * 10**8
    koordinator.step()
    assert quota.read_text() == "100000"  # 2 x 0.65 - 0.3
    clock[0], used[0] = 2 * 10**9, 18 * 10**8
    koordinator.step()
    assert quota.read_text() == "2000"  # the floor, at once
    clock[0] = 3 * 10**9
    koordinator.step()
    assert quota.read_text() == "22000"  # a tenth of the node per second


def test_katalyst_gives_way_to_a_service_that_waits(tmp_path: Path, clock: list[int]) -> None:
    used, waited = [0], [0]
    rule = POLICIES["katalyst"].rule
    assert rule is not None
    katalyst = rule(node(tmp_path, used, waited))
    quota = tmp_path / "cpu.cfs_quota_us"
    assert quota.read_text() == "100000"
    clock[0], used[0], waited[0] = 5 * 10**9, 45 * 10**8, 10 * 10**9
    katalyst.step()
    assert int(quota.read_text()) < 100_000


def test_katalyst_goes_on_where_the_last_block_of_the_mix_ended(
    tmp_path: Path, clock: list[int]
) -> None:
    used, waited = [0], [0]
    rule = POLICIES["katalyst"].rule
    assert rule is not None
    here = node(tmp_path, used, waited)
    katalyst = rule(here)
    clock[0], used[0], waited[0] = 5 * 10**9, 45 * 10**8, 10 * 10**9
    katalyst.step()
    quota = (tmp_path / "cpu.cfs_quota_us").read_text()
    (tmp_path / "cpu.cfs_quota_us").write_text("-1")
    rule(here)
    assert (tmp_path / "cpu.cfs_quota_us").read_text() == quota != "100000"


def test_knobs_are_given_back(tmp_path: Path) -> None:
    made = node(tmp_path, [0], [0])
    with POLICIES["katalyst"].applied(made):
        assert (tmp_path / "cpu.idle").read_text() == "1"
        # The kernel gives a cgroup that is no longer idle the default weight.
        (tmp_path / "cpu.shares").write_text("1024")
    assert (tmp_path / "cpu.idle").read_text() == "0"
    assert (tmp_path / "cpu.cfs_quota_us").read_text() == "-1"
    assert (tmp_path / "cpu.shares").read_text() == "2"


def test_a_rule_that_fails_ends_the_block(tmp_path: Path) -> None:
    def fail() -> int:
        raise OSError("no such cgroup")

    made = Node(knobs=CpuKnobs(tmp_path, "v1"), service_oncpu_ns=fail, service_wait_ns=lambda: 0)
    with pytest.raises(OSError, match="no such"), POLICIES["koordinator 65 %"].applied(made):
        pass


def test_the_quota_of_cgroup_v2(tmp_path: Path) -> None:
    knobs = CpuKnobs(tmp_path, "v2")
    knobs.set_quota(0.5)
    assert (tmp_path / "cpu.max").read_text() == "50000 100000"
