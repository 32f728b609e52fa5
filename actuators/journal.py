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
import logging
import os
from pathlib import Path
import re

from actuators.base import Trace, no_trace
from actuators.record import Record, checked_fields, encode, parse, record_name
from controller.core.model import Knob, Target
from controller.host.facts import boot_id
from controller.host.state_dir import open_directory, read_file, release_command

__all__ = ("Journal", "JournalError", "Record")

_log = logging.getLogger(__name__)

_NEWER = "written by a newer version: run '{}' of that version"
_UNREAD = "cannot be read now: its knob is not touched; run '{}' again"
# No fault of the file: another reading may succeed.
_FAULTS_OF_THE_HOST = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO}
_DAMAGED = "damaged: its knob is not touched; restore it by hand, then remove this file"
_BESIDE = "of a knob with a damaged or newer record: not evaluated before that is removed"


class JournalError(Exception):
    """The journal cannot be read or written; ``errno`` is the cause, the message has a remedy."""

    def __init__(self, error: OSError, what: str, remedy: str) -> None:
        super().__init__(f"{what}: {error.strerror}; {remedy}")
        self.errno = error.errno or errno.EIO


class Journal:
    """The records on disk, and a copy of them in memory.

    The constructor loads all records. Damaged files are renamed to ``*.bad``. The records of a
    file system that cannot be written are loaded and restored all the same.

    ``complete``: whether every record was on disk at the last ``renew``.

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
        self._identity: tuple[int, int] | None = None
        self.complete = True
        try:
            self._make_directory()
            self._load()
        except OSError as error:
            raise _unusable(directory, error) from None

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
        return bool(self._kept) and any(self._kept_files(record_name(target, knob)))

    def get(self, target: Target, knob: Knob) -> Record | None:
        """Return the record of a knob; ``None`` if it is not held.

        The path of *target* is not compared: a renamed cgroup is the same one.
        """
        return self._records.get(record_name(target, knob)) if self._records else None

    def put(self, record: Record) -> None:
        """Store *record*; call this before the kernel is written.

        :raises JournalError: the record could not be stored; the knob must not be written then.
        """
        name = record_name(record.target, record.knob)
        path = self.directory / f"{name}.json"
        remedy = "the knob is not changed until this succeeds"
        for kept, reason in self._kept_files(name):
            obstacle = OSError(errno.EEXIST, f"there is {kept}, {reason}")
            raise JournalError(obstacle, f"cannot write {path}", remedy)
        try:
            self._store(path, record)
        except OSError as error:
            raise JournalError(error, f"cannot write {path}", remedy) from None
        self._leftover.discard(path)
        self._records[name] = record

    def amend(self, record: Record) -> None:
        """Put *record* in place of the one in memory alone, because it cannot be stored now."""
        self._records[record_name(record.target, record.knob)] = record

    def remember(self, record: Record) -> None:
        """Take over a record that another process has stored; ``renew`` stores it if it is lost."""
        self._records.setdefault(record_name(record.target, record.knob), record)

    def reload(self) -> None:
        """Read the records that another process has added; those in memory stay.

        :raises JournalError: the directory cannot be read.
        """
        try:
            os.close(open_directory(self.directory))
            self._load()
        except FileNotFoundError:
            return  # ``renew`` makes it again
        except OSError as error:
            raise _unusable(self.directory, error) from None

    def renew(self) -> bool:
        """Make the directory and the files of records again that are not on disk any more.

        Another program may remove or replace the directory. A knob whose record is lost could not
        be restored after a kill. Returns whether anything was lost.

        :raises JournalError: the directory cannot be written now; see ``complete``.
        """
        before, self.complete = self.complete, not self._records
        known = self._identity
        probe = self.directory / "probe.tmp"
        try:
            lost = self._make_directory()
            present = set(os.listdir(self.directory))  # noqa: PTH208 - names are enough, of many
            missing = [name for name in self._records if lost or f"{name}.json" not in present]
            self.complete = not missing
            # A file system without space, quota or inodes accepts no record, but all else.
            _write(probe, b".")
            probe.unlink()
            for name in missing:
                self._store(self.directory / f"{name}.json", self._records[name])
        except OSError as error:
            with contextlib.suppress(OSError):
                probe.unlink()
            if error.errno in _FAULTS_OF_THE_HOST:
                self.complete = before
            self._identity = known  # the records on disk are those of that directory
            remedy = "no knob gets a new value until this succeeds"
            raise JournalError(error, f"cannot write {self.directory}", remedy) from None
        self.complete = True
        return lost or bool(missing)

    def remove(self, record: Record) -> None:
        """Drop the record of a knob that is restored, gone, or written by another program.

        A file that cannot be removed is reported in the log. It does no harm: its knob has the
        original value, or one that is not ours, so the next start drops it. The removal is tried
        again with the next one.
        """
        name = record_name(record.target, record.knob)
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

    def _make_directory(self) -> bool:
        # Returns whether it is another one than before.
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = open_directory(self.directory)
        try:
            found = os.fstat(fd)
            # Write permission here amounts to write permission to any cgroup.
            with contextlib.suppress(OSError):
                os.fchmod(fd, 0o700)
        finally:
            os.close(fd)
        before, self._identity = self._identity, (found.st_dev, found.st_ino)
        return self._identity != before

    def _store(self, path: Path, record: Record) -> None:
        temporary = path.with_suffix(".tmp")
        try:
            self._trace("before journal write")
            _write(temporary, encode(record, self._boot_id))
            self._trace("before journal rename")
            temporary.replace(path)
            self._trace("after journal rename")
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()  # it may have taken the last space
            raise

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
            fields = checked_fields(read_file(path))
            if fields["boot_id"] != self._boot_id:
                with contextlib.suppress(OSError):
                    path.unlink()
                return
            record = parse(fields, path.stem)
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
        command = release_command(self.directory.parent)
        self._kept.setdefault(name, {})[path] = reason.format(command)


def _unusable(directory: Path, error: OSError) -> JournalError:
    return JournalError(
        error,
        f"cannot use the journal directory {directory}",
        "make it a directory that only root may write (mode 0700), or choose another state_dir",
    )


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
