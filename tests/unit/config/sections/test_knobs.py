# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The sections ``resctrl:``, ``io:`` and ``core_scheduling:``, and the disks of the host."""

import logging
from pathlib import Path

import pytest

from controller.config.load import Config, ConfigError, load
from controller.config.sections.resctrl import ResctrlConfig
from controller.core.settings import CoreMode, CoreSettings, DiskSpec, IoSettings
from controller.core.units import NS_PER_SEC
from controller.host.disks import find_disks

WORKLOADS = "workloads:\n  - {name: batch, cgroup: /batch, class: best-effort}\n"
CORE_WORKLOADS = """\
workloads:
  - {name: web, cgroup: /web, class: latency-sensitive}
  - {name: batch, cgroup: "/batch/*", class: best-effort, core_group: team-a}
  - {name: more, cgroup: /more, class: best-effort}
"""
DEFAULT = ResctrlConfig(
    manage=True,
    mount=False,
    group="sweetpoint-best-effort",
    adopted=False,
    monitor=True,
    rmid_reserve=4,
)


def config(folder: Path, text: str = "") -> Config:
    file = folder / "config.yaml"
    file.write_text(WORKLOADS + text)
    return load(file, cpus=4)


def test_defaults(tmp_path: Path) -> None:
    found = config(tmp_path)
    assert found.resctrl == DEFAULT
    assert found.io == IoSettings((), find=True)


def test_every_field_of_resctrl_and_io(tmp_path: Path) -> None:
    text = "resctrl: {manage: false, mount: true, group: sweetpoint-x, monitor: false}\n"
    text += 'io: {find: false, disks: {/dev/nvme0n1: {read: 2GB/s, write: 500 MiB/s}, "8:0": '
    text += "{read: 100MB/s, write: 90MB/s}}}\n"
    found = config(tmp_path, text)
    assert found.resctrl == DEFAULT._replace(
        manage=False, mount=True, group="sweetpoint-x", monitor=False
    )
    disks = DiskSpec("/dev/nvme0n1", 2 * 10**9, 500 * 2**20), DiskSpec("8:0", 10**8, 9 * 10**7)
    assert found.io == IoSettings(disks, find=False)


@pytest.mark.parametrize(("text", "on"), [("", False), ("off", False), ("auto", True)])
def test_iocost_is_off_unless_said(tmp_path: Path, text: str, on: bool) -> None:
    assert config(tmp_path, f"io: {{iocost: {text}}}\n" if text else "").io.iocost is on


def test_an_adopted_group_replaces_the_default_group(tmp_path: Path) -> None:
    found = config(tmp_path, "resctrl: {adopt: BestEffort, rmid_reserve: 0}\n")
    assert found.resctrl == DEFAULT._replace(group="BestEffort", adopted=True, rmid_reserve=0)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("resctrl: {group: best-effort}\n", 3),
        ("resctrl: {group: sweetpoint-../x}\n", 3),
        ("resctrl: {adopt: a/b}\n", 3),
        ("resctrl: {adopt: ..}\n", 3),
        ("resctrl:\n  adopt: mon_groups\n", 4),
        ("resctrl: {rmid_reserve: -1}\n", 3),
        ("resctrl: {cache: 3}\n", 3),
        ("io: {disks: {sda: {read: 1GB/s, write: 1GB/s}}}\n", 3),
        ("io: {disks: {/dev/../x: {read: 1GB/s, write: 1GB/s}}}\n", 3),
        ("io: {disks: {/dev/sda: {read: 1GB, write: 1GB/s}}}\n", 3),
        ("io: {disks: {/dev/sda: {read: 1kB/s, write: 1GB/s}}}\n", 3),
        ("io: {disks: {/dev/sda: {read: 1GB/s}}}\n", 3),
    ],
)
def test_messages_name_the_line(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, text)
    (problem,) = caught.value.problems
    assert f"config.yaml:{line}" in problem


def test_missing_disks_are_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    wanted = ("/dev/null", "/dev/sweetpoint-no-such", "999:999")
    caplog.set_level(logging.WARNING)
    specs = tuple(DiskSpec(device, 1, 1) for device in wanted)
    assert find_disks(IoSettings(specs, find=False)) == ()
    messages = [record.getMessage() for record in caplog.records]
    assert [device in message for device, message in zip(wanted, messages, strict=True)] == [
        True,
        True,
        True,
    ]
    assert "not a block device" in messages[0]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_defaults_of_core_scheduling(tmp_path: Path) -> None:
    config = load(write(tmp_path, CORE_WORKLOADS), cpus=4)
    assert config.settings.core == CoreSettings(CoreMode.AUTO, 0.1, 30 * NS_PER_SEC)
    assert [rule.core_group for rule in config.workloads] == ["", "team-a", ""]


@pytest.mark.parametrize("mode", ["off", "auto", "on"])
def test_fields_of_core_scheduling(tmp_path: Path, mode: str) -> None:
    section = f"core_scheduling: {{mode: {mode}, overlap: 25%, verify: 1m}}\n"
    config = load(write(tmp_path, section + CORE_WORKLOADS), cpus=4)
    assert config.settings.core == CoreSettings(CoreMode(mode), 0.25, 60 * NS_PER_SEC)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("core_scheduling: {mode: yes}\n", ":1: core_scheduling.mode"),
        ("core_scheduling: {overlap: 2}\n", "core_scheduling.overlap"),
        ("core_scheduling: {verify: 1s}\n", "core_scheduling.verify"),
    ],
)
def test_mistakes_in_core_scheduling(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(write(tmp_path, change + CORE_WORKLOADS), cpus=4)


@pytest.mark.parametrize("group", ["a b", "../x", "''", "-x"])
def test_invalid_core_groups(tmp_path: Path, group: str) -> None:
    with pytest.raises(ConfigError, match="core_group"):
        load(write(tmp_path, CORE_WORKLOADS.replace("team-a", group)), cpus=4)


def test_a_service_has_no_core_group(tmp_path: Path) -> None:
    text = CORE_WORKLOADS.replace("sensitive}", "sensitive, core_group: team-a}")
    with pytest.raises(ConfigError, match="only a best-effort workload has a core_group"):
        load(write(tmp_path, text), cpus=4)
