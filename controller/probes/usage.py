# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Memory and disk traffic of workloads, from cgroup v2's ``memory.current`` and ``io.stat``.

Reading ``io.stat`` makes the kernel add up every CPU's part, so only some workloads are read
in a tick: all of up to 250 within a second, of more in proportionally longer.
"""

from collections.abc import Iterable, Iterator, Mapping
import contextlib
import itertools
import os
from pathlib import Path
from typing import NamedTuple

from controller.model import CgroupId, Workload

__all__ = ("Usage", "UsageMeter", "parse_io_bytes")

_PER_READ = 50


class Usage(NamedTuple):
    """Bytes charged to a workload now, and bytes it read and wrote; ``None``: not told.

    What goes through stacked devices (dm, md) counts once on each of them.
    """

    memory_bytes: int | None
    io_bytes: int | None


class UsageMeter:
    """Follows workloads of the cgroup2 tree; without its controllers it tells nothing.

    ``workloads`` is what was read last of each.

    :param unified: the mount of the cgroup2 tree.
    """

    def __init__(self, unified: Path | None) -> None:
        self._unified = unified or Path()
        controllers = set()
        if unified is not None:
            with contextlib.suppress(OSError):
                controllers = set((unified / "cgroup.controllers").read_text().split())
        self._has = (bool("memory" in controllers), bool("io" in controllers))
        self._paths: dict[CgroupId, str] = {}
        self._next: Iterator[CgroupId] = iter(())
        self.workloads: dict[CgroupId, Usage] = {}

    def follow(self, workloads: Iterable[Workload]) -> None:
        """Read these from now on, and no others."""
        self._paths = {w.cgroup: w.path for w in workloads} if any(self._has) else {}
        self._next = itertools.cycle(tuple(self._paths))
        self.workloads = {c: u for c, u in self.workloads.items() if c in self._paths}

    def read(self) -> Mapping[CgroupId, Usage]:
        """Bring some of ``workloads`` up to date and return it."""
        for cgroup in itertools.islice(self._next, min(_PER_READ, len(self._paths))):
            directory = self._unified / self._paths[cgroup][1:]
            memory = _text(directory / "memory.current") if self._has[0] else None
            io = _text(directory / "io.stat") if self._has[1] else None
            self.workloads[cgroup] = Usage(
                memory_bytes=None if memory is None else int(memory),
                io_bytes=None if io is None else parse_io_bytes(io),
            )
        return self.workloads


def parse_io_bytes(text: bytes) -> int:
    """Return what was read and written in all, from the text of ``io.stat``.

    >>> parse_io_bytes(b"8:0 rbytes=4096 wbytes=512 rios=1 wios=1 dbytes=9 dios=1\\n")
    4608
    """
    words = (word.partition(b"=") for word in text.split())
    return sum(int(count) for key, _, count in words if key in (b"rbytes", b"wbytes"))


def _text(path: Path) -> bytes | None:
    # Gone, or the controller is not handed down to there.
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.read(fd, 65536)
    except OSError:
        return None
    finally:
        os.close(fd)
