# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Files that outlive a boot: the data directory, and small JSON documents in it.

The data directory (``data_dir``, by default /var/lib/sweetpoint) has the mode 0700, its files 0600.
Directory and files must belong to root alone, because what is read from them takes part in
decisions; links are not followed. Without a usable directory the agent works, and keeps nothing.

A document is an object ``{"version": N, "content": ...}``, replaced by rename after fsync(2), so a
crash or a loss of power leaves the old one or the new one. A document of a newer version is left
alone, one that is damaged is set aside as ``NAME.json.damaged``. Standard library only.
"""

from collections.abc import Mapping
import contextlib
from dataclasses import dataclass, field
import json
import logging
import os
from pathlib import Path
import stat
import threading
from typing import Any, NamedTuple

from controller.host.state_dir import check_owner, open_directory

__all__ = ("Document", "Store", "StoreState", "open_data_dir")

_log = logging.getLogger(__name__)

_MAX_BYTES = 4 << 20
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_data_dir(path: Path, *, create: bool) -> int:
    """Return a descriptor of the data directory *path*, or of a directory below it.

    :param create: make the directory, and take it from readers other than root. Only the last
        component is made: a missing parent is a file system that is not mounted.
    :raises OSError: there is no such directory, or it does not belong to root alone.
    """
    if create:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    fd = open_directory(path)
    if create and os.fstat(fd).st_mode & 0o077:
        # Where the node's kubelet made the directory, everybody may read it.
        with contextlib.suppress(OSError):
            os.fchmod(fd, 0o700)
    return fd


class Document(NamedTuple):
    """A document as it was read: the version of its format, and its content (plain JSON types)."""

    version: int
    content: Any


@dataclass(frozen=True, slots=True)
class StoreState:
    """What does not work, by name of the document: the present problem, and writes lost so far."""

    problems: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)


class _NewerError(ValueError):
    """The document has a newer format than this version of the agent."""


class Store:
    """Reads and writes the documents of *directory*. No method raises an ``OSError``.

    ``write`` returns at once: a thread writes, because fsync(2) waits for the disk, on a busy one
    for seconds. Of several contents that wait for the same document the last one is written. A
    problem is logged when it begins.
    """

    def __init__(self, directory: Path, max_bytes: int = _MAX_BYTES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._problems: dict[str, str] = {}
        self._lost: dict[str, int] = {}
        self._kept: set[str] = set()
        self._pending: dict[str, bytes] = {}
        self._condition = threading.Condition()
        self._busy = self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def state(self) -> StoreState:
        """The present problems, and how many writes were lost."""
        return StoreState(self._problems.copy(), self._lost.copy())

    def read(self, name: str, newest: int) -> Document | None:
        """Return the document *name*; ``None`` if there is none that can be used.

        :param newest: the newest version that the caller understands. A document of a newer one
            is not written either, until the store is made anew.
        """
        problem = ""
        try:
            return self._parse(self._load(name), newest)
        except FileNotFoundError:
            return None
        except _NewerError as error:
            self._kept.add(name)
            problem = f"{error}: it is left alone"
        except (ValueError, RecursionError) as error:
            problem = f"it is damaged ({error}): {self._set_aside(name)}"
        except OSError as error:
            problem = f"it cannot be read: {error.strerror}"
        self._tell(name, problem)
        return None

    def write(self, name: str, version: int, content: object) -> None:
        """Replace the document *name* soon; *content* has plain JSON types only."""
        if name in self._kept:
            self._lose(name, self._problems[name])
            return
        try:
            data = json.dumps({"version": version, "content": content}, allow_nan=False).encode()
        except ValueError as error:  # a figure that is not finite
            self._lose(name, f"it cannot be JSON: {error}")
            return
        if len(data) > self._max_bytes:
            self._lose(name, f"it would have {len(data)} bytes, more than {self._max_bytes}")
            return
        with self._condition:
            try:
                self._start()
            except RuntimeError as error:  # the host is short of threads
                self._lose(name, f"it cannot be written: {error}")
                return
            self._pending[name] = data
            self._condition.notify_all()

    def flush(self, within_s: float) -> bool:
        """Wait until nothing is left to write, at most *within_s* seconds; return whether so."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._pending and not self._busy, within_s)

    def close(self, within_s: float = 2.0) -> None:
        """Write what waits, for at most *within_s* seconds, and end the thread."""
        if not self.flush(within_s):
            _log.warning("%s: the disk does not answer, changes are lost", self._directory)
        with self._condition:
            self._closing = True
            self._condition.notify_all()

    def _start(self) -> None:
        if self._thread is None and not self._closing:
            thread = threading.Thread(target=self._run, name="store", daemon=True)
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while True:
            with self._condition:
                self._busy = False
                self._condition.notify_all()
                self._condition.wait_for(lambda: self._pending or self._closing)
                if self._closing:
                    return
                name = next(iter(self._pending))
                data = self._pending.pop(name)
                self._busy = True
            try:
                self._replace(name, data)
            except OSError as error:
                self._lose(name, f"it cannot be written: {error.strerror}")
            else:
                self._problems.pop(name, None)

    def _load(self, name: str) -> bytes:
        directory = open_data_dir(self._directory, create=False)
        try:
            fd = os.open(_file(name), os.O_RDONLY | _OPEN, dir_fd=directory)
        finally:
            os.close(directory)
        with os.fdopen(fd, "rb") as file:
            check_owner(fd, self._directory / _file(name))
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ValueError("no regular file")
            return file.read(self._max_bytes + 1)

    def _parse(self, data: bytes, newest: int) -> Document:
        if len(data) > self._max_bytes:
            raise ValueError(f"more than {self._max_bytes} bytes")
        document = json.loads(data)
        if not isinstance(document, dict) or type(document.get("version")) is not int:
            raise ValueError("no version")
        if document["version"] > newest:
            raise _NewerError(
                f"its version {document['version']} is of a newer sweetpoint (known: {newest})"
            )
        if "content" not in document:
            raise ValueError("no content")
        return Document(document["version"], document["content"])

    def _set_aside(self, name: str) -> str:
        file = self._directory / _file(name)
        aside = file.with_name(f"{file.name}.damaged")
        try:
            file.replace(aside)
        except OSError as error:
            return f"it is ignored, and cannot be set aside ({error.strerror})"
        return f"set aside as {aside.name}"

    def _replace(self, name: str, data: bytes) -> None:
        directory = open_data_dir(self._directory, create=True)
        new = f"{_file(name)}.new"
        try:
            # A file that an earlier agent left may be a link, or not ours.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new, dir_fd=directory)
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=directory)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(fd)
                os.replace(new, _file(name), src_dir_fd=directory, dst_dir_fd=directory)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(new, dir_fd=directory)
                raise
            os.fsync(directory)
        finally:
            os.close(directory)

    def _lose(self, name: str, problem: str) -> None:
        self._lost[name] = self._lost.get(name, 0) + 1
        self._tell(name, problem)

    def _tell(self, name: str, problem: str) -> None:
        if self._problems.get(name) != problem:
            self._problems[name] = problem
            _log.error("%s: %s", self._directory / _file(name), problem)


def _file(name: str) -> str:
    return f"{name}.json"
