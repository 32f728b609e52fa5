# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Recordings: all inputs of the planner and its plans, as gzipped JSON lines, one per tick.

The planner is a pure function of these inputs, so a replay computes exactly the same plans. A
replay with other settings shows what another profile would have done.
"""

from collections.abc import Iterator, Sequence
import contextlib
from dataclasses import dataclass, replace
from functools import cache
import gzip
import json
import logging
from pathlib import Path
from typing import Annotated, Any, Self
import zlib

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    WrapSerializer,
)
from pydantic_core import CoreSchema, PydanticSerializationError, core_schema

from controller.config.profile_set import base_name
from controller.config.sections.law import REMOVED, parts_off
from controller.config.yaml_document import ConfigError
from controller.core.decision import Outcome, Plan
from controller.core.eviction.budget import EvictionHistory
from controller.core.learning.state import LearnedIndicator
from controller.core.model import QosClass, Snapshot, Workload
from controller.core.planner import Planner
from controller.core.settings import Settings
from controller.host.names import utf8
from controller.host.ring import write_whole

__all__ = ("Entry", "Recorder", "RecordingError", "planner_for", "read", "replay")

_log = logging.getLogger(__name__)

_GZIP = 31  # wbits of zlib for a gzip member
# Entries of a member: five seconds of them, which are lost when the agent is killed.
_MEMBER_ENTRIES = 25
_MAX_WAITING = 8 << 20


class RecordingError(Exception):
    """The file is not a recording, or is truncated; the message names the line."""


def _with_removed(settings: Settings | None, dump: SerializerFunctionWrapHandler) -> Any:
    # The parts of the law that are always on are written as such. Otherwise the settings were
    # those of a recording from before the parts existed, to this version and to earlier ones.
    data = dump(settings)
    if data is not None:
        data["law"] = data.get("law", {}) | dict.fromkeys(REMOVED, True)
    return data


def _find_off(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    settings = data.get("settings")
    off = parts_off(settings.get("law")) if isinstance(settings, dict) else ()
    return data | {"parts_off": off}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tick. ``settings`` and ``workloads`` are present if they changed before this tick.

    ``anew``: a new planner was made, with the history ``past_evictions`` and what was ``learned``,
    as at the start and after an abandoned tick. ``parts_off``: parts of the control law that were
    off in the recorded ``settings``, and that cannot be switched off any more.
    """

    snapshot: Snapshot
    outcomes: tuple[Outcome, ...]
    plan: Plan
    anew: bool = False
    past_evictions: EvictionHistory | None = None
    learned: tuple[LearnedIndicator, ...] = ()
    settings: Annotated[Settings | None, WrapSerializer(_with_removed)] = None
    workloads: tuple[Workload, ...] | None = None
    parts_off: Annotated[tuple[str, ...], Field(exclude=True)] = ()

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_find_off, handler(source))


@cache
def _adapter() -> TypeAdapter[Entry]:
    # With the first use, because the schema of all records takes as long to make as ten ticks.
    return TypeAdapter(Entry)


class Recorder:
    """Writes entries to *path*. One takes about a millisecond per hundred workloads.

    The file consists of gzip members of some entries each, and has whole ones only. Without space
    on the disk they wait in memory, up to 8 MiB. Beyond that the recording ends: an entry cannot be
    replayed without those before it. Both are logged, and no method raises an ``OSError``.

    :raises OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb", buffering=0)
        self._size = 0  # of the members in the file
        self._waiting = b""  # members that are not in the file
        self._begin()
        self._problem = ""
        self._ended = False

    def write(self, entry: Entry) -> None:
        """Append *entry*."""
        if self._ended:
            return
        try:
            line = _adapter().dump_json(entry)
        except PydanticSerializationError:  # a path that is not UTF-8
            line = utf8(json.dumps(_adapter().dump_python(entry, mode="json"), ensure_ascii=False))
        self._member += self._gzip.compress(line + b"\n")
        self._entries += 1
        if self._entries >= _MEMBER_ENTRIES:
            self._store()

    def close(self) -> None:
        """Write what waits and close the file."""
        if not self._ended:
            self._store(closing=True)
        try:
            self._file.close()
        except OSError as error:  # a file system may find only now that it has no space
            _log.error("the recording %s may lack its end (%s)", self._path, error.strerror)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        self._gzip = zlib.compressobj(1, wbits=_GZIP)
        self._member = b""
        self._entries = 0

    def _store(self, *, closing: bool = False) -> None:
        if self._entries:
            self._waiting += self._member + self._gzip.flush()
            self._begin()
        problem = ""
        try:
            write_whole(self._file.fileno(), self._waiting)
        except OSError as error:
            self._take_back()
            problem = f"cannot be written ({error.strerror}), and is kept in memory"
            self._ended = closing or len(self._waiting) > _MAX_WAITING
            if self._ended:
                problem = f"ends early, because it cannot be written ({error.strerror})"
                self._waiting = b""
        else:
            self._size += len(self._waiting)
            self._waiting = b""
        if problem and problem != self._problem:
            _log.error("the recording %s %s", self._path, problem)
        elif self._problem and not problem:
            _log.info("the recording %s is written again, without a gap", self._path)
        self._problem = problem

    def _take_back(self) -> None:
        # First the position: what comes next replaces a part that cannot be cut off, because some
        # file systems need space for that, too.
        for step in (self._file.seek, self._file.truncate):
            with contextlib.suppress(OSError):
                step(self._size)


def read(path: Path) -> Iterator[Entry]:
    """Yield the entries of a recording.

    :raises RecordingError: a line is not an entry; the entries before it have been yielded.
    :raises OSError: the file cannot be read.
    """
    with gzip.open(path, "rb") as lines:
        number = 0
        try:
            for number, line in enumerate(lines, 1):  # noqa: B007 - named in the message
                yield _adapter().validate_json(line)
        except (ValidationError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            reason = str(error).splitlines()[0]
            raise RecordingError(f"{path}: line {number}: {reason}") from None


def replay(
    entries: Iterator[Entry], settings: Settings | None = None
) -> Iterator[tuple[Entry, Plan]]:
    """Compute the plan of every entry again and yield the entry with the new plan.

    :param settings: replace all recorded settings, except for the facts of the recorded host and
        the tick.
    :raises RecordingError: the first entry lacks settings or workloads.
    :raises ConfigError: *settings* lack a profile that a service of the recording has.
    """
    planner: Planner | None = None
    for entry in entries:
        wanted = entry.settings
        if settings is not None and wanted is not None:
            wanted = replace(settings, host=wanted.host, tick_ns=wanted.tick_ns)
        if settings is not None and entry.workloads is not None:
            # Derived profiles exist in recorded settings only, not in configuration files.
            workloads = tuple(w._replace(profile=base_name(w.profile)) for w in entry.workloads)
            entry = replace(entry, workloads=workloads)
            _check_profiles(settings, workloads)
        planner = planner_for(entry, planner, wanted)
        yield entry, planner.step(entry.snapshot, entry.outcomes)


def planner_for(entry: Entry, planner: Planner | None, settings: Settings | None) -> Planner:
    """Return the planner that the plan of *entry* is from: a new one, or *planner* brought up.

    *settings* are those of the entry, or what replaces them.

    :raises RecordingError: *planner* is ``None``, and the entry does not begin a recording.
    """
    if entry.anew and settings is not None and entry.workloads is not None:
        return Planner(settings, entry.workloads, entry.past_evictions, entry.learned)
    if planner is None:
        raise RecordingError("the recording does not start with settings and workloads")
    if settings is not None:
        planner.reconfigure(settings, entry.workloads)
    elif entry.workloads is not None:
        planner.set_workloads(entry.workloads)
    return planner


def _check_profiles(settings: Settings, workloads: Sequence[Workload]) -> None:
    used = {each.profile: each.service for each in workloads if each.qos is QosClass.LS}
    problems = [
        f"the recorded service {service!r} has the profile {name!r}, which the configuration "
        f"lacks: name a file with this profile under 'profiles' (if it came from a ConfigMap: a "
        f"file with the text of its key {name}.yaml)"
        for name, service in sorted(used.items())
        if name not in settings.profiles
    ]
    if problems:
        raise ConfigError(problems)
