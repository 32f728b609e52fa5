# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Perf events per CPU: parses a configured event source and opens it.

A source has the syntax of ``perf``: a generic hardware or software event of the kernel
(``cycles``, ``cpu-clock``), an event of a PMU in sysfs (``cpu/cycles/``, ``msr/tsc/``), the same
by its fields (``cpu/event=0x2e,umask=0x41/``), or a raw code (``r412e``).
"""

import ctypes
import os
from pathlib import Path
import re
from typing import NamedTuple

from controller.host.facts import libc

__all__ = ("EventSource", "SourceError", "find_source", "open_event")

_DEVICES = Path("/sys/bus/event_source/devices")
_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_FLAG_CLOEXEC = 8
# include/uapi/linux/perf_event.h
_TYPE_HARDWARE, _TYPE_SOFTWARE, _TYPE_RAW = 0, 1, 4
_HARDWARE = {
    "cycles": 0,
    "instructions": 1,
    "cache-references": 2,
    "cache-misses": 3,
    "stalled-cycles-frontend": 7,
    "stalled-cycles-backend": 8,
    "ref-cycles": 9,
}
_SOFTWARE = {
    "cpu-clock": 0,
    "task-clock": 1,
    "page-faults": 2,
    "context-switches": 3,
    "cpu-migrations": 4,
}
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_PMU = re.compile(rf"({_NAME})/({_NAME}(?:=[^/]*)?)/")
_RAW = re.compile(r"r([0-9a-f]{1,16})")
_FIELDS = re.compile(rf"{_NAME}(=(0x[0-9a-f]+|[0-9]+))?(,{_NAME}(=(0x[0-9a-f]+|[0-9]+))?)*")
_CONFIGS = ("config", "config1", "config2")


class SourceError(ValueError):
    """The source has a syntax error, or this host does not have the event."""


class EventSource(NamedTuple):
    """Type and configuration words for perf_event_open, and the text they were parsed from."""

    text: str
    type: int
    config: int
    config1: int = 0
    config2: int = 0


class _Attr(ctypes.Structure):
    """``struct perf_event_attr`` up to PERF_ATTR_SIZE_VER1."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("wakeup_events", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("config1", ctypes.c_uint64),
        ("config2", ctypes.c_uint64),
    )


def find_source(text: str, devices: Path = _DEVICES) -> EventSource:
    """Return the event that *text* names on this host.

    :param devices: the directory of the PMUs in sysfs.
    :raises SourceError: *text* is malformed, or no PMU of this host has the event.
    """
    if text in _HARDWARE:
        return EventSource(text, _TYPE_HARDWARE, _HARDWARE[text])
    if text in _SOFTWARE:
        return EventSource(text, _TYPE_SOFTWARE, _SOFTWARE[text])
    if match := _RAW.fullmatch(text):
        return EventSource(text, _TYPE_RAW, int(match[1], 16))
    match = _PMU.fullmatch(text)
    if match is None:
        raise SourceError(
            f"{text!r} is no event: use a PMU's event such as cpu/cycles/ or msr/tsc/, a raw "
            f"code such as r412e, or one of {', '.join((*_HARDWARE, *_SOFTWARE))}"
        )
    return _parse_pmu_event(text, devices / match[1], match[2])


def _parse_pmu_event(text: str, device: Path, terms: str) -> EventSource:
    try:
        kind = int((device / "type").read_text())
    except (OSError, ValueError):
        have = ", ".join(sorted(path.name for path in device.parent.glob("*"))) or "none"
        raise SourceError(f"{text}: this host has no PMU {device.name} (it has {have})") from None
    if "=" not in terms and "," not in terms:
        try:
            terms = (device / "events" / terms).read_text().strip()
        except OSError:
            raise SourceError(f"{text}: the PMU {device.name} has no event {terms!r}") from None
    if not _FIELDS.fullmatch(terms):
        raise SourceError(f"{text}: {terms!r} is not a list of fields such as event=0x2e,umask=1")
    words = dict.fromkeys(_CONFIGS, 0)
    for term in terms.split(","):
        name, _, number = term.partition("=")
        _set_field(text, device, words, name, int(number, 0) if number else 1)
    return EventSource(text, kind, *words.values())


def _set_field(text: str, device: Path, words: dict[str, int], name: str, value: int) -> None:
    # The format file gives the word and the bits of a field: "config:0-7,32-35".
    if name in words:
        words[name] |= value
        return
    try:
        word, _, bits = (device / "format" / name).read_text().strip().partition(":")
    except OSError:
        raise SourceError(f"{text}: the PMU {device.name} has no field {name!r}") from None
    if word not in words:
        raise SourceError(f"{text}: the field {name!r} is in {word}, which is not supported")
    for part in bits.split(","):
        low, _, high = part.partition("-")
        width = int(high or low) - int(low) + 1
        words[word] |= (value & (1 << width) - 1) << int(low)
        value >>= width
    if value:
        raise SourceError(f"{text}: the value of {name!r} does not fit into its bits")


def open_event(source: EventSource, cpu: int) -> int:
    """Open *source* on *cpu* for all tasks and return the descriptor of the event.

    No sample period is set: PMUs that only count, such as ``msr``, refuse one.

    :raises OSError: the kernel refuses (ENOENT, EOPNOTSUPP: no such counter; EACCES: missing
        permission; ENODEV: the CPU is off line).
    """
    machine = os.uname().machine
    number = _SYS_PERF_EVENT_OPEN.get(machine)
    if number is None:
        raise OSError(38, f"the number of the system call perf_event_open on {machine} is unknown")
    attr = _Attr(
        type=source.type,
        size=ctypes.sizeof(_Attr),
        config=source.config,
        config1=source.config1,
        config2=source.config2,
    )
    fd: int = libc().syscall(number, ctypes.byref(attr), -1, cpu, -1, _FLAG_CLOEXEC)
    if fd < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{source.text} on CPU {cpu}: {os.strerror(error)}")
    return fd
