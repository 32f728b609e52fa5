# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The sections ``resctrl:`` and ``io:`` of the configuration, and the disks that are there."""

import logging
from pathlib import Path

import pytest

from controller.config.load import Config, ConfigError, load
from controller.config.sections.knobs import ResctrlConfig
from controller.core.settings import DiskSpec
from controller.host.facts import find_disks

WORKLOADS = "workloads:\n  - {name: batch, cgroup: /batch, class: best-effort}\n"
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


def test_nothing_said(tmp_path: Path) -> None:
    found = config(tmp_path)
    assert found.resctrl == DEFAULT
    assert found.disks == ()


def test_every_field(tmp_path: Path) -> None:
    text = "resctrl: {manage: false, mount: true, group: sweetpoint-x, monitor: false}\n"
    text += 'io: {disks: {/dev/nvme0n1: {read: 2GB/s, write: 500 MiB/s}, "8:0": '
    text += "{read: 100MB/s, write: 90MB/s}}}\n"
    found = config(tmp_path, text)
    assert found.resctrl == DEFAULT._replace(
        manage=False, mount=True, group="sweetpoint-x", monitor=False
    )
    assert found.disks == (
        DiskSpec("/dev/nvme0n1", 2 * 10**9, 500 * 2**20),
        DiskSpec("8:0", 10**8, 9 * 10**7),
    )


def test_an_adopted_group_takes_the_place_of_ours(tmp_path: Path) -> None:
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
def test_mistakes_are_named_by_line(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, text)
    (problem,) = caught.value.problems
    assert f"config.yaml:{line}" in problem


def test_disks_that_are_not_there_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    wanted = ("/dev/null", "/dev/sweetpoint-no-such", "999:999")
    caplog.set_level(logging.WARNING)
    assert find_disks(DiskSpec(device, 1, 1) for device in wanted) == ()
    messages = [record.getMessage() for record in caplog.records]
    assert [device in message for device, message in zip(wanted, messages, strict=True)] == [
        True,
        True,
        True,
    ]
    assert "no block device" in messages[0]
