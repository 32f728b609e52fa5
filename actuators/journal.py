# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The journal: write-ahead records of changed knobs, one small file for each held knob.

A record is on disk before the kernel is written. After any end of this process, the next one can
therefore distinguish values of ours from foreign values, and restore the originals. Knobs are
reset by a reboot: the directory belongs on a tmpfs, and records of another boot are dropped. Files
are replaced by rename without fsync, because they have to survive processes but not the machine.

A record that this version cannot evaluate is kept, whether it is damaged or of a newer version: it
may be the only place of an original value. Its knob is neither read nor written until the file is
removed by hand, and is found by the name of the file. A name is therefore the same in all versions,
``KNOB.KIND.SCOPE.ID.TAG.json``, with ``.vFORMAT`` before ``.json`` from format 2 on, so that no
version overwrites a record of another one.
"""

from collections.abc import Iterator, Mapping
import contextlib
import errno
import json
import logging
import os
from pathlib import Path
import re
from typing import NamedTuple
import zlib

from actuators.base import Trace, no_trace
from controller.core.model import Knob, KnobValue, Target, TargetKind
from controller.host.facts import boot_id
from controller.host.state_dir import open_directory, read_file

__all__ = ("Journal", "JournalError", "Record")

_log = logging.getLogger(__name__)

_FORMAT = 1

_NEWER = "written by a newer version: run 'sweetpoint release' of that version"
_UNREAD = "cannot be read now: its knob is not touched; run 'sweetpoint release' again"
# No fault of the file: another reading may succeed.
_FAULTS_OF_THE_HOST = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO}
_DAMAGED = "damaged: its knob is not touched; restore it by hand, then remove this file"
_BESIDE = "of a knob with a damaged or newer record: not evaluated before that is removed"


class JournalError(Exception):
    """The journal cannot be read or written; ``errno`` is the cause, the message has a remedy."""

    def __init__(self, error: OSError, what: str, remedy: str) -> None:
        super().__init__(f"{what}: {error.strerror}; {remedy}")
        self.errno = error.errno or errno.EIO


class Record(NamedTuple):
    """A held knob.

    ``original`` is the value to restore. The last write changed the knob from ``previous`` to
    ``intended``; the knob has one of these values or one between them.
    """

    target: Target
    knob: Knob
    original: KnobValue
    previous: KnobValue
    intended: KnobValue


class Journal:
    """The records on disk, and a copy of them in memory.

    The constructor loads all records. Damaged files are renamed to ``*.bad``. The records of a
    file system that cannot be written are loaded and restored all the same.

    :param directory: created if missing; its mode is set to 0700.
    :param trace: see ``base.Trace``.
    :raises JournalError: the directory can be neither created nor read, or does not belong to root
        alone.
    """

    def __init__(self, directory: Path, trace: Trace = no_trace) -> None:
        self.directory = directory
        self._trace = trace
        self._records: dict[str, Record] = {}
        # The files that this version cannot evaluate, with the reason, by the name of their knob.
        self._kept: dict[str, dict[Path, str]] = {}
        # The files of dropped records that could not be removed.
        self._leftover: set[Path] = set()
        self._boot_id = boot_id()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Write permission here amounts to write permission to any cgroup.
            fd = open_directory(directory)
            try:
                with contextlib.suppress(OSError):
                    os.fchmod(fd, 0o700)
            finally:
                os.close(fd)
            self._load()
        except OSError as error:
            raise JournalError(
                error,
                f"cannot use the journal directory {directory}",
                "make it a directory that only root may write (mode 0700), or choose another "
                "state_dir",
            ) from None

    @property
    def records(self) -> tuple[Record, ...]:
        """All records."""
        return tuple(self._records.values())

    @property
    def kept(self) -> Mapping[Path, str]:
        """The files that this version cannot evaluate, with the reason and what to do."""
        return {path: reason for name in self._kept for path, reason in self._kept_files(name)}

    def is_kept(self, target: Target, knob: Knob) -> bool:
        """Return whether a knob has such a file: it must be neither read nor written."""
        return bool(self._kept) and any(self._kept_files(_name(target, knob)))

    def get(self, target: Target, knob: Knob) -> Record | None:
        """Return the record of a knob; ``None`` if it is not held.

        The path of *target* is not compared: a renamed cgroup is the same one.
        """
        return self._records.get(_name(target, knob)) if self._records else None

    def put(self, record: Record) -> None:
        """Store *record*; call this before the kernel is written.

        :raises JournalError: the record could not be stored; the knob must not be written then.
        """
        name = _name(record.target, record.knob)
        path = self.directory / f"{name}.json"
        temporary = path.with_suffix(".tmp")
        remedy = "the knob is not changed until this succeeds"
        for kept, reason in self._kept_files(name):
            obstacle = OSError(errno.EEXIST, f"there is {kept}, {reason}")
            raise JournalError(obstacle, f"cannot write {path}", remedy)
        try:
            self._trace("before journal write")
            _write(temporary, _encode(record, self._boot_id))
            self._trace("before journal rename")
            temporary.replace(path)
            self._trace("after journal rename")
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()  # it may have taken the last space
            raise JournalError(error, f"cannot write {path}", remedy) from None
        self._leftover.discard(path)
        self._records[name] = record

    def remove(self, record: Record) -> None:
        """Drop the record of a knob that is restored, gone, or written by another program.

        A file that cannot be removed is reported in the log. It does no harm: its knob has the
        original value, or one that is not ours, so the next start drops it. The removal is tried
        again with the next one.
        """
        name = _name(record.target, record.knob)
        path = self.directory / f"{name}.json"
        self._trace("before journal remove")
        self._records.pop(name, None)
        for each in (path, *self._leftover):
            try:
                each.unlink(missing_ok=True)
            except OSError as error:
                if each not in self._leftover:
                    text = "cannot remove %s: %s; its knob is released, so it is without effect"
                    _log.warning(text, each, error.strerror)
                self._leftover |= {each}
            else:
                self._leftover -= {each}
        self._trace("after journal remove")

    def _kept_files(self, name: str) -> Iterator[tuple[Path, str]]:
        for path, reason in self._kept.get(name, {}).items():
            if path.exists():
                yield path, reason

    def _load(self) -> None:
        for path in sorted(self.directory.iterdir()):
            if path.suffix == ".tmp":
                with contextlib.suppress(OSError):
                    path.unlink()  # an incomplete write
            elif path.suffix == ".json":
                self._load_file(path)
            elif path.suffix == ".bad":
                self._keep(path, _DAMAGED)
        for name in self._kept.keys() & self._records.keys():
            del self._records[name]
            self._keep(self.directory / f"{name}.json", _BESIDE)

    def _load_file(self, path: Path) -> None:
        try:
            fields = _checked(read_file(path))
            if fields["boot_id"] != self._boot_id:
                with contextlib.suppress(OSError):
                    path.unlink()
                return
            record = _record(fields, path.stem)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            if isinstance(error, OSError) and error.errno in _FAULTS_OF_THE_HOST:
                _log.error("journal record %s cannot be read now: %s", path, error.strerror)
                self._keep(path, _UNREAD)
                return
            _log.error("journal record %s is damaged (%s): its knob is not touched", path, error)
            self._keep(_set_aside(path), _DAMAGED)
            return
        if record is None:
            _log.warning("journal record %s is of a newer version: its knob is not touched", path)
            self._keep(path, _NEWER)
            return
        self._records[path.stem] = record

    def _keep(self, path: Path, reason: str) -> None:
        name = re.sub(r"(\.v[0-9]+)?\.(json|bad)$", "", path.name)
        self._kept.setdefault(name, {})[path] = reason


def _name(target: Target, knob: Knob) -> str:
    scope = re.sub(r"[^A-Za-z0-9]", "-", target.scope)
    # The tag distinguishes scopes that become equal in a file name, and objects that have no id
    # before they are created.
    tag = zlib.crc32((target.scope if target.id else f"{target.scope}\0{target.path}").encode())
    return f"{knob}.{target.kind}.{scope}.{target.id}.{tag:08x}"


def _set_aside(path: Path) -> Path:
    # Renames a damaged file, so that version 0.1 does not overwrite it.
    aside = path.with_suffix(".bad")
    try:
        if not aside.exists():
            return path.rename(aside)
    except OSError as error:
        _log.warning("cannot rename %s: %s", path, error.strerror)
    return path


def _write(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)


def _encode(record: Record, boot_id: str) -> bytes:
    body = {
        "format": _FORMAT,
        "boot_id": boot_id,
        "kind": record.target.kind,
        "scope": record.target.scope,
        "id": record.target.id,
        "path": record.target.path,
        "knob": record.knob,
        "original": record.original,
        "previous": record.previous,
        "intended": record.intended,
    }
    return json.dumps(body | {"crc": _crc(body)}).encode()


def _crc(body: Mapping[str, object]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


def _checked(data: bytes) -> dict[str, object]:
    # Returns the fields of a record with a valid checksum; raises ValueError, KeyError or
    # TypeError otherwise.
    body = json.loads(data)
    if not isinstance(body, dict):
        raise TypeError("not a record")
    if body.pop("crc") != _crc(body):
        raise ValueError("wrong checksum")
    return body


def _record(fields: Mapping[str, object], name: str) -> Record | None:
    # Returns None for a valid record that only a newer version can interpret; raises ValueError,
    # KeyError or TypeError for one that is not the record of the knob *name*.
    kinds, knobs = [str(kind) for kind in TargetKind], [str(knob) for knob in Knob]
    if fields["format"] != _FORMAT or fields["kind"] not in kinds or fields["knob"] not in knobs:
        return None
    id_ = fields["id"]
    if not isinstance(id_, int):
        raise TypeError("id is not a number")
    target = Target(
        TargetKind(_text(fields, "kind")), _text(fields, "scope"), id_, _text(fields, "path")
    )
    record = Record(
        target,
        Knob(_text(fields, "knob")),
        KnobValue(_text(fields, "original")),
        KnobValue(_text(fields, "previous")),
        KnobValue(_text(fields, "intended")),
    )
    # The file of a copy under another name would outlive the record, and be restored once more.
    if _name(target, record.knob) != name:
        raise ValueError("the record of another knob than its name says")
    return record


def _text(fields: Mapping[str, object], key: str) -> str:
    value = fields[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} is not text")
    return value
