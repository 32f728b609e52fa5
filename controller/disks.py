# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The disks of the configuration as the kernel numbers them."""

from collections.abc import Iterable
import logging
import os
from pathlib import Path
import stat

from controller.configsections.io import DiskConfig
from controller.settings import DiskFacts

__all__ = ("find_disks",)

_log = logging.getLogger(__name__)


def find_disks(disks: Iterable[DiskConfig]) -> tuple[DiskFacts, ...]:
    """Return those of *disks* that are here; what is wrong with the others is logged.

    io.max takes whole disks only, no partitions (blkg_conf_open_bdev in block/blk-cgroup.c).
    """
    found = []
    for disk in disks:
        number, problem = _number(disk.device)
        directory = Path("/sys/dev/block") / number
        if not problem and not directory.exists():
            problem = "no such disk"
        if not problem and (directory / "partition").exists():
            problem = "a partition: name the whole disk"
        if problem:
            _log.warning("io.disks: %s is left alone: %s", disk.device, problem)
        else:
            found.append(DiskFacts(number, disk.read_bytes_per_s, disk.write_bytes_per_s))
    return tuple(found)


def _number(device: str) -> tuple[str, str]:
    """Return MAJOR:MINOR of *device*, and why there is none."""
    if not device.startswith("/"):
        return device, ""
    try:
        status = Path(device).stat()
    except OSError as error:
        return "", error.strerror or str(error)
    if not stat.S_ISBLK(status.st_mode):
        return "", "no block device"
    return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}", ""
