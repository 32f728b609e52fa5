# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Counters of a monitoring group, from files in the kernel's format."""

from pathlib import Path

import pytest

from controller.core.model import Target, TargetKind
from controller.probes import resctrl
from controller.probes.resctrl import (
    CacheUse,
    GroupCounters,
    GroupMembership,
    MonitorError,
    group_membership,
)
from controller.reconcilers.resctrl.monitored import count_others

ALL = frozenset({"llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"})
CACHES = ("mon_L3_00", "mon_L3_01")


class Group:
    """A directory with the files of a monitoring group."""

    def __init__(self, mount: Path, name: str = "g") -> None:
        self.path = mount / name
        for cache in CACHES:
            (self.path / "mon_data" / cache).mkdir(parents=True)
        self.target = Target(TargetKind.RESCTRL_GROUP, str(mount), self.path.stat().st_ino, name)
        self.set("llc_occupancy", "0", "0")
        self.set("mbm_total_bytes", "0", "0")

    def set(self, name: str, *texts: str) -> None:
        for cache, text in zip(CACHES, texts, strict=True):
            (self.path / "mon_data" / cache / name).write_text(text + "\n")


def test_caches_are_summed_and_bandwidth_grows(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.set("llc_occupancy", "100", "23")
    group.set("mbm_total_bytes", "5000", "70")
    counters = GroupCounters(group.target, ALL)
    # Counts from before the first poll are not the workload's.
    assert counters.poll() == CacheUse(123, 0)
    group.set("mbm_total_bytes", "5005", "100")
    assert counters.poll() == CacheUse(123, 35)
    # One cache's counter was restarted: its new value becomes the base.
    group.set("mbm_total_bytes", "3", "101")
    assert counters.poll() == CacheUse(123, 36)
    group.set("mbm_total_bytes", "10", "101")
    assert counters.poll() == CacheUse(123, 43)
    assert counters.counted_bytes == 43


def test_an_unavailable_counter_is_none(tmp_path: Path) -> None:
    group = Group(tmp_path)
    counters = GroupCounters(group.target, ALL)
    group.set("mbm_total_bytes", "10", "20")
    counters.poll()
    group.set("llc_occupancy", "Unavailable", "5")
    group.set("mbm_total_bytes", "Unassigned", "21")
    assert counters.poll() == CacheUse(None, None)
    group.set("llc_occupancy", "4", "5")
    group.set("mbm_total_bytes", "12", "22")
    assert counters.poll() == CacheUse(9, 4)


@pytest.mark.parametrize("text", ["Error", "", "-5", "12 13", "1e5"])
def test_a_malformed_counter_is_an_error(tmp_path: Path, text: str) -> None:
    group = Group(tmp_path)
    group.set("mbm_total_bytes", "0", text)
    with pytest.raises(MonitorError, match="mon_L3_01/mbm_total_bytes: "):
        GroupCounters(group.target, ALL).poll()


def test_domains_other_than_caches_are_not_read(tmp_path: Path) -> None:
    group = Group(tmp_path)
    (group.path / "mon_data" / "mon_PERF_PKG_00").mkdir()
    (group.path / "mon_data" / "mon_PERF_PKG_00" / "core_energy").write_text("1.5\n")
    group.set("llc_occupancy", "100", "23")
    assert GroupCounters(group.target, ALL).poll() == CacheUse(123, 0)


def test_a_counter_that_cannot_be_read_is_an_error_of_its_group(tmp_path: Path) -> None:
    group = Group(tmp_path)
    (group.path / "mon_data" / "mon_L3_01" / "llc_occupancy").unlink()
    with pytest.raises(MonitorError, match="mon_L3_01/llc_occupancy: No such file"):
        GroupCounters(group.target, ALL).poll()


def test_only_features_of_the_hardware_are_read(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.set("mbm_local_bytes", "7", "7")
    only_cache = GroupCounters(group.target, frozenset({"llc_occupancy"}))
    assert only_cache.poll() == CacheUse(0, None)
    only_local = GroupCounters(group.target, frozenset({"mbm_local_bytes"}))
    only_local.poll()
    group.set("mbm_local_bytes", "8", "9")
    assert only_local.poll() == CacheUse(None, 3)


def test_a_new_group_of_the_same_name_is_not_read(tmp_path: Path) -> None:
    group = Group(tmp_path)
    counters = GroupCounters(group.target, ALL)
    assert counters.poll() == CacheUse(0, 0)
    group.path.rename(tmp_path / "old")
    assert counters.poll() is None
    Group(tmp_path)
    assert counters.poll() is None


def test_groups_of_others_that_use_hardware_ids_are_counted(tmp_path: Path) -> None:
    for name in (
        "info/L3_MON",
        "mon_data/mon_L3_00",
        "mon_groups/sweetpoint-1",
        "mon_groups/theirs",
        "sweetpoint-best-effort/mon_groups/sweetpoint-2",
        "container/mon_groups/one",
        "without/mon_data",
    ):
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(FileNotFoundError):  # without tasks: a mount point, not the mounted tree
        count_others(tmp_path)
    (tmp_path / "tasks").write_text("")
    # The root group, three control groups, two groups of others; the agent's are not counted.
    assert count_others(tmp_path) == 6


def test_tasks_whose_file_has_another_form_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resctrl, "Path", lambda path: tmp_path / path[1:])
    for tid, text in ((7, "res:/be\nmon:web\n"), (8, "res:/be\n"), (9, ""), (10, "res:\nmon:\n")):
        (tmp_path / "proc" / str(tid)).mkdir(parents=True)
        (tmp_path / "proc" / str(tid) / "cpu_resctrl_groups").write_text(text)
    found = dict(group_membership(iter((6, 7, 8, 9, 10))))
    assert found == {7: GroupMembership("be", "web")}
