# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Memory and disk traffic of workloads, from cgroup v2's ``memory.current`` and ``io.stat``.

Reading ``io.stat`` makes the kernel add up every CPU's part, so only some workloads are read
in a tick: of those of which something is to be expected up to 250 within a second, of more in
proportionally longer.
"""

from collections.abc import Collection, Iterable
import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from controller.model import CgroupId, Workload
from controller.probes.turns import Turns
from controller.units import NS_PER_SEC

__all__ = ("Usage", "UsageMeter", "parse_io_bytes")

_ROUND_NS = NS_PER_SEC
_PER_READ = 50


class Usage(NamedTuple):
    """Bytes charged to a workload now, and bytes it read and wrote; ``None``: not told.

    What goes through stacked devices (dm, md) counts once on each of them.
    """

    memory_bytes: int | None
    io_bytes: int | None


class UsageMeter:
    """Follows workloads of the cgroup2 tree; without its controllers it tells nothing.

    ``workloads`` is what was read last of each; ``changed`` is of whom ``read`` found something
    new.

    :param unified: the mount of the cgroup2 tree.
    """

    def __init__(self, unified: Path | None) -> None:
        self._unified = str(unified or "")
        controllers = set()
        if unified is not None:
            with contextlib.suppress(OSError):
                controllers = set((unified / "cgroup.controllers").read_text().split())
        self._has = (bool("memory" in controllers), bool("io" in controllers))
        self._paths: dict[CgroupId, str] = {}
        self._turns = Turns()
        self._round: list[CgroupId] = []
        self._round_due_ns = 0
        self.workloads: dict[CgroupId, Usage] = {}
        self.changed: Collection[CgroupId] = ()

    def follow(self, workloads: Iterable[Workload]) -> None:
        """Read these from now on, and no others."""
        self._paths = {w.cgroup: w.path for w in workloads} if any(self._has) else {}
        self._turns.follow(self._paths)
        self._round = [cgroup for cgroup in self._round if cgroup in self._paths]
        self.workloads = {c: u for c, u in self.workloads.items() if c in self._paths}

    def read(self, now_ns: int, moved: Iterable[CgroupId] | None) -> None:
        """Bring some of ``workloads`` up to date.

        :param moved: who ran, waited or sent something since the last call; ``None``: perhaps
            everybody. Nobody else is read, but in turn: see ``Turns``.
        """
        self._turns.moved(moved)
        if not self._round and now_ns >= self._round_due_ns:
            self._round_due_ns = now_ns + _ROUND_NS
            self._round = self._turns.take()
        part, self._round = self._round[:_PER_READ], self._round[_PER_READ:]
        self.changed = [cgroup for cgroup in part if self._has_changed(cgroup)]
        self._turns.moved(self.changed)

    def _has_changed(self, cgroup: CgroupId) -> bool:
        directory = self._unified + self._paths[cgroup]
        memory = _text(f"{directory}/memory.current") if self._has[0] else None
        io = _text(f"{directory}/io.stat") if self._has[1] else None
        now = Usage(
            memory_bytes=None if memory is None else int(memory),
            io_bytes=None if io is None else parse_io_bytes(io),
        )
        before, self.workloads[cgroup] = self.workloads.get(cgroup), now
        return now != before


def parse_io_bytes(text: bytes) -> int:
    """Return what was read and written in all, from the text of ``io.stat``.

    >>> parse_io_bytes(b"8:0 rbytes=4096 wbytes=512 rios=1 wios=1 dbytes=9 dios=1\\n")
    4608
    """
    words = (word.partition(b"=") for word in text.split())
    return sum(int(count) for key, _, count in words if key in (b"rbytes", b"wbytes"))


def _text(path: str) -> bytes | None:
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
