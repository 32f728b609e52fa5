# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Steal time, which the hypervisor gave to other guests, from the first line of /proc/stat.

To produce that file the kernel walks over every interrupt of every CPU, so it is read once a
second and not in every tick.
"""

import os
from pathlib import Path

from controller.core.units import NS_PER_SEC
from controller.host.odd_rows import report_odd

__all__ = ("StealMeter",)

_EVERY_NS = NS_PER_SEC
_STEAL_FIELD = 8  # cpu user nice system idle iowait irq softirq steal (proc(5))


class StealMeter:
    """The steal time of the machine."""

    def __init__(self, path: Path = Path("/proc/stat")) -> None:
        self._path = path
        self._tick_ns = NS_PER_SEC // os.sysconf("SC_CLK_TCK")
        self._due_ns = 0
        self._steal_ns: int | None = None

    def poll(self, now_ns: int) -> int | None:
        """Return the steal time since boot in ns, summed over all CPUs, at most 1 s old.

        ``None`` if the kernel does not report it.
        """
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _EVERY_NS
            with self._path.open(encoding="ascii", errors="replace") as lines:
                line = lines.readline()
            self._steal_ns = self._parse(line)
        return self._steal_ns

    def _parse(self, line: str) -> int | None:
        fields = line.split()
        if len(fields) <= _STEAL_FIELD:
            return None
        if not fields[_STEAL_FIELD].isdecimal():
            report_odd("/proc/stat", line)
            return None
        return int(fields[_STEAL_FIELD]) * self._tick_ns
