# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pauses: the file with those of this host, and the texts that set their end.

``sweetpoint pause`` writes the file and the agent reads it. Its ends are times of the wall clock,
because a pause has to end at the same moment whether the agent was restarted or not. Text from
files and annotations is bounded, and a pause has a longest duration: one that does not end by
itself would leave services without protection for good.
"""

from collections.abc import Iterable, Iterator
import contextlib
from dataclasses import dataclass, field
from datetime import datetime
import fcntl
import json
import math
import os
from pathlib import Path
from typing import NamedTuple

from controller.core.units import NS_PER_SEC, UnitError, parse_duration
from controller.host.state_dir import open_directory, read_file, write_json

__all__ = (
    "EVERYTHING",
    "LONGEST_S",
    "POLICY",
    "SERVICE",
    "WORKLOAD",
    "PauseEntry",
    "PauseError",
    "PauseState",
    "change_pauses",
    "parse_end",
    "pause_file",
    "read_pauses",
)

EVERYTHING, SERVICE, WORKLOAD = "everything", "service", "workload"
# A policy of the configuration that is not in force until then; `sweetpoint trial` sets it.
POLICY = "policy"
LONGEST_S = 7 * 24 * 3600.0
MAX_ENTRIES = 64
MAX_NAME = 253
# 64 entries with names in which JSON escapes each character.
_MAX_BYTES = 1 << 18
_MAX_END = 64
_VERSION = 1
# The clock may be set back between the command and the reading of the file.
_CLOCK_STEP_S = 3600.0


class PauseError(ValueError):
    """A text or a file that is not a pause; the message has no part of it that is not bounded."""


class PauseEntry(NamedTuple):
    """One pause until ``until_s``, in seconds since the epoch.

    ``scope`` is ``everything``, ``service``, ``workload`` or ``policy``; the first has no name.
    """

    scope: str
    name: str
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseState:
    """The pauses in force by source (``file``, ``node``), and why a source cannot be used."""

    entries: tuple[tuple[str, PauseEntry], ...] = ()
    problems: tuple[tuple[str, str], ...] = field(default_factory=tuple)


def pause_file(state_dir: Path) -> Path:
    """Return the path of the file with the pauses of this host."""
    return state_dir / "pause.json"


def parse_end(text: str, now_s: float) -> float:
    """Return the end that *text* sets: a duration such as ``30m``, or a time in RFC 3339.

    *now_s* is the time from which a duration counts, both in seconds since the epoch. An end that
    has passed is valid.

    :raises PauseError: neither of the two, without a time zone, or more than seven days ahead.
    """
    if len(text) > _MAX_END:
        raise PauseError(f"longer than {_MAX_END} characters")
    shown = ascii(text)
    try:
        until_s = now_s + parse_duration(text) / NS_PER_SEC
    except UnitError:
        try:
            end = datetime.fromisoformat(text.strip())
        except ValueError:
            raise PauseError(
                f"{shown} is neither a duration such as 30m nor a time such as 2030-01-31T18:00:00Z"
            ) from None
        if end.tzinfo is None:
            raise PauseError(f"{shown} has no time zone; add Z for UTC") from None
        try:
            until_s = end.timestamp()
        except (OverflowError, ValueError):
            raise PauseError(f"{shown} is out of range") from None
    if until_s > now_s + LONGEST_S:
        raise PauseError(f"{shown} is more than {LONGEST_S / 86400:.0f} days ahead")
    return until_s


def read_pauses(state_dir: Path, now_s: float) -> tuple[PauseEntry, ...]:
    """Return the pauses in the file, also those that ended; empty without a file.

    :raises PauseError: the file is not root's, damaged, of a newer version, or too large.
    """
    path = pause_file(state_dir)
    try:
        data = read_file(path, at_most=_MAX_BYTES + 1)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise PauseError(f"{path}: {error.strerror}") from None
    if len(data) > _MAX_BYTES:
        raise PauseError(f"{path}: larger than {_MAX_BYTES >> 10} KiB")
    try:
        return tuple(_entries(json.loads(data), now_s))
    except PauseError as error:
        raise PauseError(f"{path}: {error}") from None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise PauseError(f"{path}: damaged") from None


def change_pauses(
    state_dir: Path,
    added: Iterable[PauseEntry],
    removed: Iterable[tuple[str, str]] | None,
    now_s: float,
) -> tuple[PauseEntry, ...]:
    """Remove the pauses with the (scope, name) of *removed*, then add *added*; return all.

    *removed* is ``None`` for all pauses.

    Of two pauses with equal scope and name the added one stays. Those that ended are dropped. A
    file that cannot be used is replaced.

    :raises PauseError: there would be more than 64 pauses, or a name is too long.
    :raises OSError: the file cannot be written.
    """
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(state_dir):
        try:
            before = read_pauses(state_dir, now_s)
        except PauseError:
            before = ()
        gone = {each[:2] for each in before} if removed is None else set(removed)
        kept = {each[:2]: each for each in before if each.until_s > now_s and each[:2] not in gone}
        for entry in added:
            _check(entry, now_s)
            kept[entry[:2]] = entry
        if len(kept) > MAX_ENTRIES:
            raise PauseError(f"more than {MAX_ENTRIES} pauses at once; pause everything instead")
        entries = tuple(kept.values())
        document = {"version": _VERSION, "pauses": [each._asdict() for each in entries]}
        write_json(pause_file(state_dir), document)
        return entries


@contextlib.contextmanager
def _locked(state_dir: Path) -> Iterator[None]:
    """Exclude other commands that change the file; the agent only reads it."""
    directory = open_directory(state_dir)
    try:
        fd = os.open("pause.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=directory)
    finally:
        os.close(directory)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _entries(document: object, now_s: float) -> Iterator[PauseEntry]:
    if not isinstance(document, dict):
        raise PauseError("damaged")
    if document["version"] != _VERSION:
        raise PauseError(f"version {ascii(document['version'])[:40]} is not known")
    pauses = document["pauses"]
    if not isinstance(pauses, list) or len(pauses) > MAX_ENTRIES:
        raise PauseError(f"not a list of at most {MAX_ENTRIES} pauses")
    for fields in pauses:
        entry = PauseEntry(**fields)
        _check(entry, now_s)
        yield entry


def _check(entry: PauseEntry, now_s: float) -> None:
    scope, name, until_s = entry
    if scope not in (EVERYTHING, SERVICE, WORKLOAD, POLICY) or not isinstance(name, str):
        raise PauseError("a pause of an unknown kind")
    if len(name) > MAX_NAME or bool(name) is (scope == EVERYTHING):
        raise PauseError(f"a name must have 1 to {MAX_NAME} characters, that of everything none")
    if type(until_s) not in (int, float) or not math.isfinite(until_s):
        raise PauseError("a pause whose end is not a time")
    if until_s > now_s + LONGEST_S + _CLOCK_STEP_S:
        raise PauseError(f"a pause that ends more than {LONGEST_S / 86400:.0f} days ahead")
