# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The file with the candidate of a trial: a policy that is in force until a time.

``sweetpoint trial --against`` writes it for one block and the agent reads it. It belongs to root as
all files of the state directory, is bounded, and its end is at most a day ahead.
"""

import json
import math
from pathlib import Path
from typing import NamedTuple

from controller.host.state_dir import read_file, write_json

__all__ = (
    "MAX_CANDIDATE_CHARS",
    "CandidateEntry",
    "CandidateError",
    "candidate_file",
    "read_candidate",
    "remove_candidate",
    "write_candidate",
)

# A policy that replaces 64 profiles has less.
MAX_CANDIDATE_CHARS = 16 << 10
_MAX_ORIGIN_CHARS = 4096
# JSON may escape each character.
_MAX_BYTES = 6 * (MAX_CANDIDATE_CHARS + _MAX_ORIGIN_CHARS) + 1024
_LONGEST_S = 24 * 3600.0
# The clock may be set back between the command and the reading of the file.
_CLOCK_STEP_S = 3600.0
_VERSION = 1


class CandidateError(ValueError):
    """A file that is not that of a candidate; the message has no part of it."""


class CandidateEntry(NamedTuple):
    """The ``text`` of a policy and its ``origin``, in force until ``until_s``, since 1970."""

    text: str
    origin: str
    until_s: float


def candidate_file(state_dir: Path) -> Path:
    """Return the path of the file."""
    return state_dir / "candidate.json"


def read_candidate(state_dir: Path, now_s: float) -> CandidateEntry | None:
    """Return what the file has, also if it ended; ``None``: there is no file.

    :raises CandidateError: the file is not root's, damaged, of a newer version, or too large.
    """
    path = candidate_file(state_dir)
    try:
        data = read_file(path, at_most=_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CandidateError(f"{path}: {error.strerror}") from None
    try:
        return _entry(data, now_s)
    except CandidateError as error:
        raise CandidateError(f"{path}: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise CandidateError(f"{path}: damaged") from None


def write_candidate(state_dir: Path, entry: CandidateEntry, now_s: float) -> None:
    """Put *entry* in place of what the file has.

    :raises CandidateError: it is too long, or ends more than a day ahead.
    :raises OSError: the file cannot be written.
    """
    _check(entry, now_s)
    write_json(candidate_file(state_dir), {"version": _VERSION, **entry._asdict()})


def remove_candidate(state_dir: Path, now_s: float, until_s: float | None = None) -> bool:
    """Remove the file, with *until_s* only if it ends then; return whether it was there.

    :raises CandidateError: *until_s* is given, and the file cannot be read.
    :raises OSError: it cannot be removed.
    """
    if until_s is not None:
        entry = read_candidate(state_dir, now_s)
        if entry is None or entry.until_s != until_s:
            return False
    try:
        candidate_file(state_dir).unlink()
    except FileNotFoundError:
        return False
    return True


def _entry(data: bytes, now_s: float) -> CandidateEntry:
    if len(data) > _MAX_BYTES:
        raise CandidateError("too large")
    fields = json.loads(data)
    if fields.pop("version") != _VERSION:
        raise CandidateError("of another version")
    entry = CandidateEntry(**fields)
    _check(entry, now_s)
    return entry


def _check(entry: CandidateEntry, now_s: float) -> None:
    if not isinstance(entry.text, str) or not isinstance(entry.origin, str):
        raise CandidateError("a candidate that is no text")
    if len(entry.text) > MAX_CANDIDATE_CHARS or len(entry.origin) > _MAX_ORIGIN_CHARS:
        raise CandidateError(f"longer than {MAX_CANDIDATE_CHARS} characters")
    if type(entry.until_s) not in (int, float) or not math.isfinite(entry.until_s):
        raise CandidateError("a candidate whose end is not a time")
    if entry.until_s > now_s + _LONGEST_S + _CLOCK_STEP_S:
        raise CandidateError(f"a candidate that ends more than {_LONGEST_S / 3600:.0f} h ahead")
