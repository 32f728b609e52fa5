# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Quantities with units: parsing of configuration, formatting for messages.

Inside the program all quantities are in base units, which their names carry (``_ns``, ``_bytes``,
``_cpus``, ``_ratio``). Text with a unit exists only in the configuration and in messages.
"""

import contextlib
import re

__all__ = (
    "MIB",
    "NS_PER_MS",
    "NS_PER_SEC",
    "NS_PER_US",
    "UnitError",
    "count",
    "format_bandwidth",
    "format_bytes",
    "format_cpus",
    "format_duration",
    "parse_bandwidth",
    "parse_bytes",
    "parse_cpu_list",
    "parse_cpus",
    "parse_duration",
    "parse_number",
    "parse_rate",
    "parse_ratio",
)

MIB = 1 << 20
NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_SEC = 1_000_000_000

_DURATIONS_NS = {
    "ns": 1,
    "us": NS_PER_US,
    "ms": NS_PER_MS,
    "s": NS_PER_SEC,
    "m": 60 * NS_PER_SEC,
    "h": 3600 * NS_PER_SEC,
}
_SIZES_BYTES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
# Bits per second, the usual unit of link speeds, in bytes per second.
_BANDWIDTHS = {"kbit": 125, "mbit": 125_000, "gbit": 125_000_000}
_NUMBER_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z%]*)\s*")


class UnitError(ValueError):
    """A text that is not a quantity; the message names the accepted units."""


def parse_duration(text: str) -> int:
    """Return *text* such as ``2ms`` or ``1.5s`` in nanoseconds.

    :raises UnitError: no number, no unit or an unknown unit (a bare number is refused).
    """
    return round(_scaled(text, _DURATIONS_NS, "a duration such as 200ms, 2s or 10m"))


def parse_bytes(text: str) -> int:
    """Return *text* such as ``64MiB`` or ``10GB`` in bytes.

    :raises UnitError: no number, no unit or an unknown unit.
    """
    return round(_scaled(text, _SIZES_BYTES, "a size such as 512KiB, 64MiB or 10GB"))


def parse_bandwidth(text: str) -> int:
    """Return *text* such as ``200mbit`` or ``10gbit`` (per second) in bytes per second.

    :raises UnitError: no number, no unit or an unknown unit.
    """
    wanted = "a bandwidth such as 500kbit, 200mbit or 10gbit"
    return round(_scaled(text, _BANDWIDTHS, wanted))


def parse_cpus(text: str) -> float:
    """Return *text* such as ``1.5cpu`` or ``250mcpu`` in CPUs.

    :raises UnitError: no number, no unit or an unknown unit.
    """
    units = {"cpu": 1.0, "cpus": 1.0, "mcpu": 0.001}
    return _scaled(text, units, "an amount of CPU such as 1.5cpu or 250mcpu")


def parse_ratio(text: str) -> float:
    """Return *text* such as ``20%`` or ``0.2`` as a ratio.

    :raises UnitError: not a number, or a unit other than ``%``.
    """
    return _scaled(text, {"%": 0.01, "": 1.0}, "a ratio such as 20% or 0.2")


def parse_number(text: str) -> float:
    """Return *text* such as ``1.35``, a quantity without a unit.

    :raises UnitError: not a number, negative, or with a unit.
    """
    return _scaled(text, {"": 1.0}, "a number without a unit such as 1.35")


def parse_rate(text: str) -> float:
    """Return *text* such as ``500/s``, a number per second.

    :raises UnitError: not a number followed by ``/s``.
    """
    number, slash, unit = text.partition("/")
    if slash and unit.strip() == "s":
        with contextlib.suppress(UnitError):
            return parse_number(number)
    raise UnitError(f"{text!r} is not a rate such as 2/s")


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the CPUs of a kernel cpulist such as ``0-3,8``.

    :raises UnitError: the text is not a cpulist.
    """
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if not part:
            continue
        first, _, last = part.partition("-")
        try:
            cpus.update(range(int(first), int(last or first) + 1))
        except ValueError:
            raise UnitError(f"{text!r} is not a CPU list such as 0-3,8") from None
    return tuple(sorted(cpus))


def format_duration(ns: float) -> str:
    """Return *ns* in the largest unit not above it: ``740us``, ``1.9ms``, ``2.5s``."""
    for unit, scale in (("s", NS_PER_SEC), ("ms", NS_PER_MS), ("us", NS_PER_US)):
        value = ns / scale
        # With three digits 999.6 would be 1e+03.
        if abs(value) >= 999.5:
            return f"{value:.0f}{unit}"
        if abs(value) >= 0.9995:
            return f"{value:.3g}{unit}"
    return f"{ns:.3g}ns"


def format_bytes(count: float) -> str:
    """Return *count* bytes with a binary unit: ``1.5MiB``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        amount = count / _SIZES_BYTES[unit]
        if abs(amount) >= 1:
            return f"{amount:.4g}{unit}" if abs(amount) >= 999.5 else f"{amount:.3g}{unit}"
    return f"{count:.0f}B"


def format_bandwidth(bytes_per_s: float) -> str:
    """Return a bandwidth in the largest unit not above it: ``200mbit``."""
    for unit in ("gbit", "mbit"):
        if bytes_per_s >= _BANDWIDTHS[unit]:
            return f"{bytes_per_s / _BANDWIDTHS[unit]:.4g}{unit}"
    return f"{bytes_per_s / _BANDWIDTHS['kbit']:.3g}kbit"


def format_cpus(cpus: float) -> str:
    """Return *cpus* with its unit: ``1.50cpu``, below a hundredth of a CPU ``2.5mcpu``."""
    return f"{cpus:.2f}cpu" if cpus >= 0.01 or cpus == 0 else f"{cpus * 1000:.2g}mcpu"


def count(number: int, noun: str) -> str:
    """Return *number* with *noun*, which gets an ``s`` unless there is one: ``2 workloads``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _scaled(text: str, units: dict[str, int] | dict[str, float], wanted: str) -> float:
    match = _NUMBER_UNIT.fullmatch(text)
    if match is None or match[2] not in units or len(match[1]) > 18:
        raise UnitError(f"{text!r} is not {wanted}")
    return float(match[1]) * units[match[2]]
