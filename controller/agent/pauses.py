# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The pauses in force: those of the file on this host and that of the Node's annotation.

The file is examined in every tick with one stat(2), so that a pause takes effect in the next tick.
A source that cannot be used is reported, once in the log and in ``state`` as long as it lasts, and
is ignored.

An end is a time of the wall clock, which may be set during a pause. What is left of a pause is
therefore taken when it is first seen, and counted by a clock that is never set.

The end of the annotation is stored with its text. A duration counts from the moment when it was
first read, also after a restart, and a restarted agent knows the pause before the API server
answers.
"""

from collections.abc import Callable, Iterable, Iterator
import json
import logging
from pathlib import Path
import time

from controller.core.model import Pause
from controller.host.pause_file import (
    EVERYTHING,
    LONGEST_S,
    POLICY,
    SERVICE,
    WORKLOAD,
    PauseEntry,
    PauseError,
    PauseState,
    change_pauses,
    parse_end,
    pause_file,
    read_pauses,
)
from controller.host.state_dir import read_file, write_json

__all__ = ("Pauses", "file_version", "since_boot")

_log = logging.getLogger(__name__)

_FILE, _NODE = "file", "node"
_STORED = "pause-node.json"
_MAX_STORED_BYTES = 1024

# A pause with its source.
_Sourced = tuple[str, PauseEntry]

# The text of the Node's annotation: its text, empty without one, ``None`` before the first answer.
Annotation = Callable[[], str | None]


def since_boot() -> float:
    """Return the seconds since the boot of the host, a suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Pauses:
    """The pauses of this host; for the control thread.

    ``state`` is as of the last ``poll``.

    :param annotation: returns the text of the Node's annotation (see ``Annotation``).
    :param wall_clock: seconds since the epoch.
    :param steady_clock: seconds since any time, a suspension of the host included.
    """

    def __init__(
        self,
        state_dir: Path,
        annotation: Annotation = lambda: "",
        wall_clock: Callable[[], float] = time.time,
        steady_clock: Callable[[], float] = since_boot,
    ) -> None:
        self._file = _FilePauses(state_dir)
        self._node = _NodePause(state_dir, annotation, wall_clock())
        self._wall_clock = wall_clock
        self._steady_clock = steady_clock
        # When each of the pauses ends by the steady clock.
        self._ends: dict[_Sourced, float] = {}
        self._pause: Pause | None = None
        self.state = PauseState()

    def poll(self) -> Pause | None:
        """Return what is paused now; the same object as long as nothing changes."""
        now_s = self._wall_clock()
        asked = [(_FILE, each) for each in self._file.poll(now_s)]
        node = self._node.poll(now_s)
        if node is not None:
            asked.append((_NODE, node))
        entries = self._in_force(asked, now_s)
        problems = tuple(
            (source, text)
            for source, text in ((_FILE, self._file.problem), (_NODE, self._node.problem))
            if text
        )
        if (tuple(entries), problems) != (self.state.entries, self.state.problems):
            self.state = PauseState(entries=tuple(entries), problems=problems)
            self._pause = _pause(entry for _, entry in entries)
        return self._pause

    @property
    def policies(self) -> frozenset[str]:
        """The names of the policies that are paused, as of the last ``poll``."""
        return frozenset(each.name for _, each in self.state.entries if each.scope == POLICY)

    def store_again(self) -> None:
        """Store the pause of the annotation again: its file is lost."""
        self._node.store_again()

    def _in_force(self, asked: list[_Sourced], now_s: float) -> list[_Sourced]:
        steady_s = self._steady_clock()
        self._ends = {
            each: self._ends.get(each, steady_s + each[1].until_s - now_s) for each in asked
        }
        return [each for each in asked if self._ends[each] > steady_s]


def _pause(entries: Iterator[PauseEntry]) -> Pause | None:
    found = [each for each in entries if each.scope != POLICY]
    if not found:
        return None
    if any(each.scope == EVERYTHING for each in found):
        return Pause(everything=True)

    def names(scope: str) -> tuple[str, ...]:
        return tuple(sorted({each.name for each in found if each.scope == scope}))

    return Pause(services=names(SERVICE), workloads=names(WORKLOAD))


# What was refused is read again after this: the host was short of something, or its clock wrong.
_AGAIN_S = 1.0


class _FilePauses:
    """The file; ``problem`` is why it cannot be used, empty if it can."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._path = pause_file(state_dir)
        self._seen: tuple[int, ...] | None = None
        # The agent's lock, when the file was read: as long as that is there, nothing was lost.
        self._lock = state_dir / "lock"
        self._lock_id: tuple[int, int] | None = None
        self._read_s = self._stored_s = 0.0
        self._entries: tuple[PauseEntry, ...] = ()
        self.problem = ""

    def poll(self, now_s: float) -> tuple[PauseEntry, ...]:
        seen = file_version(self._path)
        left = [] if seen is not None else [e for e in self._entries if e.until_s > now_s]
        if left and _file_id(self._lock) != self._lock_id:
            # It went with all else in the directory: nobody ended these pauses.
            self._store_again(left, now_s)
        elif seen != self._seen or (self.problem and abs(now_s - self._read_s) >= _AGAIN_S):
            self._seen, self._read_s = seen, now_s
            self._lock_id = _file_id(self._lock)
            try:
                self._entries = read_pauses(self._state_dir, now_s)
                self.problem = ""
            except PauseError as error:
                if str(error) != self.problem:
                    _log.error("%s: the pauses in it are ignored", error)
                self._entries, self.problem = (), str(error)
        return self._entries

    def _store_again(self, entries: Iterable[PauseEntry], now_s: float) -> None:
        if abs(now_s - self._stored_s) < _AGAIN_S:
            return
        self._stored_s = now_s
        try:
            change_pauses(self._state_dir, entries, (), now_s)
        except (OSError, PauseError) as error:
            if str(error) != self.problem:
                _log.error("%s is lost and cannot be stored again: %s", self._path, error)
            self.problem = str(error)
        else:
            self.problem = ""


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def file_version(path: Path) -> tuple[int, ...] | None:
    """Return what differs after *path* was replaced; ``None``: there is no such file."""
    try:
        found = path.stat(follow_symlinks=False)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


class _NodePause:
    """The annotation; ``problem`` is why it is ignored, empty if it is not."""

    def __init__(self, state_dir: Path, annotation: Annotation, now_s: float) -> None:
        self._path = state_dir / _STORED
        self._annotation = annotation
        self._text, self._entry = _read_stored(self._path, now_s)
        self._taken_s = 0.0
        self.problem = ""

    def poll(self, now_s: float) -> PauseEntry | None:
        text = self._annotation()
        again = self.problem and abs(now_s - self._taken_s) >= _AGAIN_S
        if text is not None and (text != self._text or again):
            self._text, self._taken_s = text, now_s
            self._take(text, now_s)
        return self._entry

    def _take(self, text: str, now_s: float) -> None:
        before, self.problem, self._entry = self.problem, "", None
        if text:
            try:
                self._entry = PauseEntry(EVERYTHING, "", parse_end(text, now_s))
            except PauseError as error:
                self.problem = str(error)
                if self.problem != before:
                    _log.error("annotation of the node: %s: ignored", error)
        self.store_again()

    def store_again(self) -> None:
        try:
            if self._entry is None:
                self._path.unlink(missing_ok=True)
            else:
                write_json(self._path, {"text": self._text, "until_s": self._entry.until_s})
        except OSError as error:
            _log.warning("%s: a restart will count the pause from its start again", error)


def _read_stored(path: Path, now_s: float) -> tuple[str, PauseEntry | None]:
    """Return the text and the pause that an earlier run stored; nothing from a damaged file."""
    try:
        stored = json.loads(read_file(path, at_most=_MAX_STORED_BYTES))
        text, until_s = stored["text"], float(stored["until_s"])
        if not isinstance(text, str) or not 0 <= until_s < now_s + 2 * LONGEST_S:
            return "", None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "", None
    return text, PauseEntry(EVERYTHING, "", until_s)
