# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Quantities as a page shows them: ``400 µs`` for the ``400us`` of logs and of the configuration.

Texts with units are made in one place for all readers (``controller.core.units``), in the form that
the configuration accepts. A page has a sign for each unit and a space that does not break.
"""

import math
import re

from controller.core.units import NS_PER_SEC

__all__ = ("cpus_of", "lasting", "position", "spaced", "times")

# Bars and trends end at this multiple of the sweet point.
_FULL = 100.0
_SPACE = "\N{NO-BREAK SPACE}"
_SIGNS = {
    **{"us": "µs", "cpu": "CPUs", "mcpu": "mCPUs"},
    **{"kbit": "kbit/s", "mbit": "Mbit/s", "gbit": "Gbit/s"},
}
_UNITS = ("ns", "us", "ms", "s", "cpu", "mcpu", "kbit", "mbit", "gbit", "%")
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
# A number with a unit that stands alone: names such as job-5s or v2.5s.x stay as they are.
_QUANTITY = re.compile(
    rf"(?<![\w./:+-])(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)({'|'.join(_UNITS + _SIZES)})(?![\w/-]|[.:]\w)"
)


def spaced(text: str) -> str:
    """Return *text* with a space before each unit, and the unit's sign."""
    return _QUANTITY.sub(lambda found: f"{found[1]}{_SPACE}{_SIGNS.get(found[2], found[2])}", text)


def cpus_of(some: float, whole: float) -> str:
    """Return *some* of *whole* CPUs: ``0.05 of 2 CPUs``."""
    return f"{some:.2f} of {whole:g}{_SPACE}CPUs"


def times(ratio: float) -> str:
    """Return a value relative to its sweet point: ``12.8``, without more digits than it has."""
    return f"{ratio:.2f}" if ratio < 9.995 else f"{ratio:.1f}" if ratio < 999.95 else f"{ratio:.3g}"


def position(ratio: float) -> float:
    """Return where *ratio* (value / sweet point) lies on a scale from 0 to 1.

    It is linear up to the sweet point, which is the middle, and logarithmic beyond: 10 times is at
    0.75, 100 times at 1.
    """
    if ratio <= 1.0:
        return max(0.0, ratio) / 2
    return 0.5 + math.log(min(ratio, _FULL), _FULL) / 2


def lasting(time_ns: float) -> str:
    """Return a length of time of the kind that people wait for: ``40 s``, ``12 min``, ``3.5 h``."""
    seconds = round(time_ns / NS_PER_SEC)
    if seconds < 100:
        return f"{seconds}{_SPACE}s"
    return f"{seconds // 60}{_SPACE}min" if seconds < 7200 else f"{seconds / 3600:.1f}{_SPACE}h"
