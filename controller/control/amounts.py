# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Canonical text of memory.high, io.weight and io.max."""

import math

from controller.model import KnobValue

__all__ = ("format_amount", "format_disks", "parse_amount", "parse_disks")

_NO_LIMIT = KnobValue("max")


def parse_amount(value: KnobValue) -> float:
    """Return a number of memory.high (bytes) or io.weight; infinity for no limit.

    :raises ValueError: the text is not canonical.
    """
    return math.inf if value == _NO_LIMIT else float(value)


def format_amount(amount: float) -> KnobValue:
    """Return the text of a number, in whole units."""
    return KnobValue(str(round(amount)))


def parse_disks(value: KnobValue) -> dict[tuple[str, str], float]:
    """Return the limits of io.max by disk and kind (rbps, wbps, riops, wiops); missing: none.

    :raises ValueError: the text is not canonical.
    """
    limits: dict[tuple[str, str], float] = {}
    for line in value.split(";"):
        if line == _NO_LIMIT:
            continue
        disk, *pairs = line.split()
        for pair in pairs:
            kind, _, number = pair.partition("=")
            if number != _NO_LIMIT:
                limits[disk, kind] = float(number)
    return limits


def format_disks(limits: dict[tuple[str, str], float]) -> KnobValue:
    """Return the text of the limits of all disks, the kinds in the kernel's order."""
    order = ("rbps", "wbps", "riops", "wiops")
    lines = []
    for disk in sorted({disk for disk, _ in limits}, key=_numbers):
        words = (f"{kind}={round(limits[disk, kind])}" for kind in order if (disk, kind) in limits)
        lines.append(f"{disk} {' '.join(words)}")
    return KnobValue(";".join(lines)) if lines else _NO_LIMIT


def _numbers(disk: str) -> tuple[int, ...]:
    return tuple(int(number) for number in disk.split(":"))
