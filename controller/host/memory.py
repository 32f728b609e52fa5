# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The memory controller of this host, and what the kernel keeps free for itself."""

import os
from pathlib import Path
from typing import Literal, NamedTuple

from controller.host.facts import find_controller

__all__ = (
    "NO_LIMIT_V1_BYTES",
    "MemoryHierarchy",
    "cgroup_text",
    "find_memory",
    "high_watermark_bytes",
)

_ZONEINFO = Path("/proc/zoneinfo")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# v1 shows "no limit" as the largest number of whole pages (PAGE_COUNTER_MAX in
# include/linux/page_counter.h).
NO_LIMIT_V1_BYTES = (2**63 - 1) // _PAGE * _PAGE


class MemoryHierarchy(NamedTuple):
    """Version and mount of the hierarchy with the memory controller; ``mount`` may be ``None``."""

    version: Literal["v1", "v2"]
    mount: Path | None

    @property
    def hierarchy(self) -> str:
        """Its name in ``model.CgroupId``."""
        return "v2" if self.version == "v2" else "memory"


def find_memory(unified: Path | None, mountinfo: str | None = None) -> MemoryHierarchy:
    """Return the hierarchy that has the memory controller; arguments as of ``find_controller``."""
    return MemoryHierarchy(*find_controller("memory", unified, mountinfo))


def high_watermark_bytes(zoneinfo: Path = _ZONEINFO, page_bytes: int = _PAGE) -> int:
    """Return the sum of the high watermarks of all zones; 0 where the kernel does not tell them.

    kswapd reclaims until that much is free (balance_pgdat in mm/vmscan.c).
    """
    try:
        text = zoneinfo.read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    words = (line.split() for line in text.splitlines())
    # Rows "high N" are of zones; those of per-CPU lists are "high: N".
    pages = (int(each[1]) for each in words if each[:1] == ["high"] and each[1:2])
    return page_bytes * sum(pages)


def cgroup_text(path: str) -> bytes:
    """Return the content of a file of a cgroup, at most 64 KiB; empty if it cannot be read.

    Then there is no such file, or the cgroup is being removed.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""
    finally:
        os.close(fd)
