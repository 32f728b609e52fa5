# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The journal: write-ahead records of changed knobs, one small file for each held knob.

A record is on disk before the kernel is written. After any end of this process, the next one can
therefore distinguish values of ours from foreign values, and restore the originals. Knobs are
reset by a reboot: the directory belongs on a tmpfs, and records of another boot are dropped. Files
are replaced by rename without fsync, because they have to survive processes but not the machine.
"""

from collections.abc import Mapping
import errno
import json
import logging
from pathlib import Path
import re
from typing import NamedTuple
import zlib

from actuators.base import Trace, no_trace
from controller.core.model import Knob, KnobValue, Target, TargetKind
from controller.host.facts import boot_id

__all__ = ("Journal", "JournalError", "Record")

_log = logging.getLogger(__name__)

_FORMAT = 1


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

    The constructor loads all records. ``unreadable`` has the paths of damaged files, which are
    renamed to ``*.bad``; ``unknown`` those of records of a newer version, which are kept.

    :param directory: created if missing; its mode is set to 0700.
    :param trace: see ``base.Trace``.
    :raises JournalError: the directory can be neither created nor read.
    """

    def __init__(self, directory: Path, trace: Trace = no_trace) -> None:
        self.directory = directory
        self.unreadable: list[str] = []
        self.unknown: list[str] = []
        self._trace = trace
        self._records: dict[tuple[Target, Knob], Record] = {}
        self._boot_id = boot_id()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # Write permission here amounts to write permission to any cgroup.
            directory.chmod(0o700)
            self._load()
        except OSError as error:
            raise JournalError(
                error,
                f"cannot use the journal directory {directory}",
                "make it a directory that only root may write (mode 0700), or choose another "
                "state_dir",
            ) from None

    @property
    def records(self) -> Mapping[tuple[Target, Knob], Record]:
        """All records by target and knob."""
        return self._records

    def get(self, target: Target, knob: Knob) -> Record | None:
        """Return the record of a knob; ``None`` if it is not held."""
        return self._records.get((target, knob))

    def put(self, record: Record) -> None:
        """Store *record*; call this before the kernel is written.

        :raises JournalError: the record could not be stored; the knob must not be written then.
        """
        path = self._path(record.target, record.knob)
        temporary = path.with_suffix(".tmp")
        try:
            self._trace("before journal write")
            temporary.write_bytes(_encode(record, self._boot_id))
            self._trace("before journal rename")
            temporary.replace(path)
            self._trace("after journal rename")
        except OSError as error:
            raise JournalError(
                error, f"cannot write {path}", "the knob is not changed until this succeeds"
            ) from None
        self._records[record.target, record.knob] = record

    def remove(self, record: Record) -> None:
        """Drop the record of a knob that is restored, gone, or written by another program.

        :raises JournalError: the file could not be removed.
        """
        path = self._path(record.target, record.knob)
        try:
            self._trace("before journal remove")
            path.unlink(missing_ok=True)
            self._trace("after journal remove")
        except OSError as error:
            raise JournalError(error, f"cannot remove {path}", "remove it by hand") from None
        self._records.pop((record.target, record.knob), None)

    def _load(self) -> None:
        for path in sorted(self.directory.iterdir()):
            if path.suffix == ".tmp":
                path.unlink(missing_ok=True)  # an incomplete write
            elif path.suffix == ".json":
                self._load_file(path)

    def _load_file(self, path: Path) -> None:
        try:
            fields = _checked(path.read_bytes())
            if fields["boot_id"] != self._boot_id:
                path.unlink(missing_ok=True)
                return
            record = _record(fields)
        except (ValueError, KeyError, TypeError) as error:
            _log.error("journal record %s is damaged (%s): renamed to *.bad", path, error)
            self.unreadable.append(str(path))
            path.replace(path.with_suffix(".bad"))
            return
        if record is None:
            _log.warning("journal record %s is of a newer version: kept unchanged", path)
            self.unknown.append(str(path))
            return
        self._records[record.target, record.knob] = record

    def _path(self, target: Target, knob: Knob) -> Path:
        scope = re.sub(r"[^A-Za-z0-9]", "-", target.scope)
        # The tag distinguishes scopes that become equal in a file name, and objects that have no
        # id before they are created.
        tag = zlib.crc32((target.scope if target.id else f"{target.scope}\0{target.path}").encode())
        return self.directory / f"{knob}.{target.kind}.{scope}.{target.id}.{tag:08x}.json"


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


def _record(fields: Mapping[str, object]) -> Record | None:
    # Returns None for a valid record that only a newer version can interpret.
    kinds, knobs = [str(kind) for kind in TargetKind], [str(knob) for knob in Knob]
    if fields["format"] != _FORMAT or fields["kind"] not in kinds or fields["knob"] not in knobs:
        return None
    target = Target(
        TargetKind(str(fields["kind"])),
        str(fields["scope"]),
        int(str(fields["id"])),
        str(fields["path"]),
    )
    return Record(
        target,
        Knob(str(fields["knob"])),
        KnobValue(str(fields["original"])),
        KnobValue(str(fields["previous"])),
        KnobValue(str(fields["intended"])),
    )
