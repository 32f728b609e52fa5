# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The disks of this host on which workloads can be limited."""

from collections.abc import Iterable, Iterator
import logging
import os
from pathlib import Path
import stat

from controller.core.knob_values import IO_MAX_KINDS, format_disks
from controller.core.model import KnobValue
from controller.core.settings import DiskFacts, DiskLimits, DiskSpec, IoSettings

__all__ = (
    "COST_FILE",
    "find_disks",
    "find_limits",
    "has_bfq",
    "may_enable_iocost",
    "weighted_disks",
)

_log = logging.getLogger(__name__)

# In the root cgroup: the disks that follow io.weight.
COST_FILE = "io.cost.qos"

_BLOCK = Path("/sys/block")
_DEVICES = Path("/sys/dev/block")


def find_disks(settings: IoSettings, block: Path = _BLOCK) -> tuple[DiskFacts, ...]:
    """Return the configured disks that exist, and the others of the host where that is wanted.

    Problems of configured ones are logged. io.max accepts whole disks only, no partitions
    (blkg_conf_open_bdev in block/blk-cgroup.c). The others are those with a device behind them: a
    loop, a mapping or a RAM disk passes its requests on to one, or needs none.
    """
    known = {each.device: each for each in map(_configured, settings.disks) if each is not None}
    if settings.find:
        known = {number: DiskFacts(number) for number in _numbers(block)} | known
    return tuple(known.values())


def find_limits(limits: Iterable[DiskLimits]) -> tuple[KnobValue, list[str]]:
    """Return *limits* of existing disks as a value of io.max, and why the others are left out."""
    found: dict[tuple[str, str], float] = {}
    problems = []
    for device, *amounts in limits:
        number, problem = _whole_disk(device)
        if problem:
            problems.append(f"{device} is ignored: {problem}")
            continue
        found |= {
            (number, kind): amount
            for kind, amount in zip(IO_MAX_KINDS, amounts, strict=True)
            if amount is not None
        }
    return format_disks(found), problems


def weighted_disks(unified: Path | None) -> tuple[str, ...]:
    """Return the disks (``MAJOR:MINOR``) that follow io.weight: those with iocost enabled."""
    if unified is None:
        return ()
    try:
        lines = (unified / COST_FILE).read_text(encoding="ascii").splitlines()
    except OSError:  # the kernel has no iocost, or the tree no io controller
        return ()
    return tuple(line.split()[0] for line in lines if "enable=1" in line.split())


def may_enable_iocost(
    unified: Path | None, disks: Iterable[DiskFacts], devices: Path = _DEVICES
) -> bool:
    """Return whether the kernel has iocost, and BFQ does not schedule all of *disks*."""
    if unified is None or not (unified / COST_FILE).exists():
        return False
    return any(not has_bfq(each.device, devices) for each in disks)


def has_bfq(disk: str, devices: Path = _DEVICES) -> bool:
    """Return whether BFQ schedules *disk* (``MAJOR:MINOR``), which has weights of its own."""
    try:
        return "[bfq]" in (devices / disk / "queue/scheduler").read_text(encoding="ascii").split()
    except OSError:  # no such disk, or it has no scheduler
        return False


def _configured(disk: DiskSpec) -> DiskFacts | None:
    number, problem = _whole_disk(disk.device)
    if problem:
        _log.warning("io.disks: %s is ignored: %s", disk.device, problem)
        return None
    return DiskFacts(number, disk.read_bytes_per_s, disk.write_bytes_per_s)


def _whole_disk(device: str) -> tuple[str, str]:
    """Return MAJOR:MINOR of *device* and, if it is no disk that can be limited, the reason."""
    number, problem = _number(device)
    directory = _DEVICES / number
    if not problem and not directory.exists():
        problem = "no such disk"
    if not problem and (directory / "partition").exists():
        problem = "it is a partition: use the whole disk"
    return number, problem


def _numbers(block: Path) -> Iterator[str]:
    """Return MAJOR:MINOR of each disk with a device behind it."""
    try:
        names = sorted(os.listdir(block))  # noqa: PTH208 - names are enough
    except OSError:
        return
    for name in names:
        try:
            if (block / name / "device").exists():
                yield (block / name / "dev").read_text(encoding="ascii").strip()
        except OSError:
            continue  # the disk was just removed


def _number(device: str) -> tuple[str, str]:
    """Return MAJOR:MINOR of *device* and, if it has none, the reason."""
    if not device.startswith("/"):
        return device, ""
    try:
        status = Path(device).stat()
    except OSError as error:
        return "", error.strerror or str(error)
    if not stat.S_ISBLK(status.st_mode):
        return "", "not a block device"
    return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}", ""
