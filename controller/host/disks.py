# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The disks of this host whose bandwidth is controlled."""

from collections.abc import Iterable
import logging
import os
from pathlib import Path
import stat

from controller.core.settings import DiskFacts, DiskSpec

__all__ = ("find_disks",)

_log = logging.getLogger(__name__)


def find_disks(disks: Iterable[DiskSpec]) -> tuple[DiskFacts, ...]:
    """Return the device numbers of those *disks* that exist; problems of the others are logged.

    io.max accepts whole disks only, no partitions (blkg_conf_open_bdev in block/blk-cgroup.c).
    """
    found = []
    for disk in disks:
        number, problem = _number(disk.device)
        directory = Path("/sys/dev/block") / number
        if not problem and not directory.exists():
            problem = "no such disk"
        if not problem and (directory / "partition").exists():
            problem = "it is a partition: use the whole disk"
        if problem:
            _log.warning("io.disks: %s is ignored: %s", disk.device, problem)
        else:
            found.append(DiskFacts(number, disk.read_bytes_per_s, disk.write_bytes_per_s))
    return tuple(found)


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
