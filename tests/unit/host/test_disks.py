# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The disks of a host that was made up, and which of them follow a weight."""

from pathlib import Path

import pytest

from controller.core.settings import DiskFacts, DiskSpec, IoSettings
from controller.host.disks import find_disks, has_bfq, may_enable_iocost, weighted_disks


@pytest.fixture
def block(tmp_path: Path) -> Path:
    """Two disks, one of which was just removed, and a loop device."""
    block = tmp_path / "block"
    for name, number in (("sda", "8:0"), ("sdb", ""), ("loop0", "7:0"), ("nvme0n1", "259:0")):
        (block / name).mkdir(parents=True)
        if number:
            (block / name / "dev").write_text(number + "\n")
        if name != "loop0":
            (block / name / "device").mkdir()
    return block


def test_all_disks_with_a_device_behind_them_are_found(block: Path) -> None:
    found = find_disks(IoSettings(), block)
    assert found == (DiskFacts("259:0", None, None), DiskFacts("8:0", None, None))
    assert find_disks(IoSettings(find=False), block) == ()
    assert find_disks(IoSettings(), block / "missing") == ()


def test_a_configured_disk_keeps_its_bandwidth(block: Path) -> None:
    whole = next(
        each.name
        for each in sorted(Path("/sys/dev/block").iterdir())
        if not (each / "partition").exists()
    )
    (block / "sda/dev").write_text(whole)
    found = find_disks(IoSettings((DiskSpec(whole, 5, 7),)), block)
    assert found == (DiskFacts("259:0", None, None), DiskFacts(whole, 5, 7))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("8:0 enable=1 ctrl=auto\n259:0 enable=0 ctrl=auto\n", ("8:0",)),
        ("8:0 enable=10\n", ()),
    ],
)
def test_disks_with_iocost_follow_a_weight(
    tmp_path: Path, text: str, found: tuple[str, ...]
) -> None:
    (tmp_path / "io.cost.qos").write_text(text)
    assert weighted_disks(tmp_path) == found
    assert weighted_disks(tmp_path / "missing") == weighted_disks(None) == ()


def test_a_disk_with_the_scheduler_bfq_is_told_apart(tmp_path: Path) -> None:
    for number, text in (("8:0", "none [mq-deadline] bfq\n"), ("8:16", "none mq-deadline [bfq]\n")):
        (tmp_path / number / "queue").mkdir(parents=True)
        (tmp_path / number / "queue/scheduler").write_text(text)
    assert [has_bfq(each, tmp_path) for each in ("8:0", "8:16", "8:32")] == [False, True, False]


def test_iocost_needs_its_file_and_a_disk_without_bfq(tmp_path: Path) -> None:
    (tmp_path / "8:16/queue").mkdir(parents=True)
    (tmp_path / "8:16/queue/scheduler").write_text("none [bfq]\n")
    other, of_bfq = DiskFacts("8:0"), DiskFacts("8:16")
    assert not may_enable_iocost(None, [other], tmp_path)
    assert not may_enable_iocost(tmp_path, [other], tmp_path)
    (tmp_path / "io.cost.qos").touch()
    assert may_enable_iocost(tmp_path, [of_bfq, other], tmp_path)
    assert not may_enable_iocost(tmp_path, [of_bfq], tmp_path)
    assert not may_enable_iocost(tmp_path, [], tmp_path)
