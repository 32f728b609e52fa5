# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Files in the state directory: the lock of the agent, small JSON files, and their owner.

Content of the state directory is written to cgroups and decides which processes get a signal. The
directory and the files that are read from it must therefore belong to root.

The lock makes sure that one agent per host writes knobs. It is an flock(2), so it ends with the
last process that has the file open and cannot become stale; the file itself stays. Guardian and
agent both hold it, and their pids are in the file. If another program removes the file, each of
them takes a shared lock of a new one, which keeps out the exclusive lock of an agent that starts.
Standard library only, because the guardian
imports this module.
"""

from collections.abc import Iterable
import contextlib
import errno
import fcntl
import json
import logging
import os
from pathlib import Path
import shlex
import stat
from typing import NamedTuple

__all__ = (
    "JOURNAL",
    "Lock",
    "LockError",
    "StateDirState",
    "check_owner",
    "has_records",
    "open_directory",
    "owners",
    "read_file",
    "release_command",
    "write_json",
)

_log = logging.getLogger(__name__)

JOURNAL = "journal"  # the directory of the records of held knobs

# The file system has no space, no inodes, no quota left, or is read-only.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


class LockError(Exception):
    """The lock is held by another process (``held``) or cannot be opened.

    The message says what to do.
    """

    def __init__(self, message: str, *, held: bool) -> None:
        super().__init__(message)
        self.held = held


class StateDirState(NamedTuple):
    """``problem`` is why the directory cannot be used now, empty if it can; it was lost ``losses``
    times and made again.
    """

    problem: str = ""
    losses: int = 0


class Lock:
    """The lock of *state_dir* (``directory``), held from construction until ``close``.

    A state directory that cannot be written does not prevent the lock, because knobs have to be
    restored then, too.

    :raises LockError: another agent holds the lock, the file cannot be opened, or the directory
        does not belong to root alone.
    """

    def __init__(self, state_dir: Path) -> None:
        self.directory = state_dir
        self.path = state_dir / "lock"
        self._warned = False
        self._pids: tuple[int, ...] = ()
        fd = self._open()
        self._take(fd, fcntl.LOCK_EX)
        self._fds = [fd]  # the last one is in use
        self.set_owners([os.getpid()])

    def renew(self) -> bool:
        """Take the lock of a new file if another program removed or replaced the present one.

        Return whether it did. The guardian and the agent both call this.

        :raises LockError: see the class; ``held``: an agent that started meanwhile has it. What
            this process holds is unchanged.
        """
        for fd in [fd for fd in self._fds if _is_at(fd, self.path)]:
            if fd != self.fileno():  # the first directory is back
                self._fds.sort(key=fd.__eq__)
                self.set_owners(self._pids)
            return False
        fd = self._open()
        if os.path.sameopenfile(fd, self.fileno()):
            os.close(fd)  # the directory, in which no file can be made
            return False
        self._take(fd, fcntl.LOCK_SH)
        # A file that was moved may come back. The other process of this agent may still hold it.
        for each in [each for each in self._fds if not os.fstat(each).st_nlink]:
            os.close(each)
            self._fds.remove(each)
        self._fds.append(fd)
        self.set_owners(self._pids)
        return True

    def _take(self, fd: int, kind: int) -> None:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            pids = owners(self.directory)
            who = " and ".join(map(str, pids)) or "a process that is starting"
            raise LockError(
                f"sweetpoint already runs on this host ({who} {'hold' if pids[1:] else 'holds'} "
                f"{self.path}): stop it with '{release_command(self.directory, '--stop')}', or "
                "leave it running",
                held=True,
            ) from None

    def _open(self) -> int:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return _open_lock(self.path)
        except OSError as error:
            raise LockError(
                f"cannot open {self.path}: {error.strerror}; run as root, or choose another "
                "state_dir",
                held=False,
            ) from None

    def fileno(self) -> int:
        """Return the file descriptor, which must stay open while the lock is held."""
        return self._fds[-1]

    def set_owners(self, pids: Iterable[int]) -> None:
        """Write *pids* to the file, in the order in which to stop these processes.

        If the file cannot be written, a warning is logged once: the lock is held all the same.
        """
        self._pids = tuple(pids)
        lines = "".join(f"{pid} {_start_time(pid)}\n" for pid in self._pids).encode("ascii")
        try:
            # In this order, so that the space of the file is used again where no other is left.
            os.pwrite(self.fileno(), lines, 0)
            os.ftruncate(self.fileno(), len(lines))
        except OSError as error:
            if not self._warned:
                _log.warning(
                    "cannot write %s: %s; '%s' may not find this process until the file can be "
                    "written",
                    self.path,
                    # Of a file that was opened for reading: the file system is read-only.
                    "it cannot be opened" if error.errno == errno.EBADF else error.strerror,
                    release_command(self.directory, "--stop"),
                )
            self._warned = True

    def close(self) -> None:
        """Close this process's descriptors; the lock ends with the last one."""
        while self._fds:
            os.close(self._fds.pop())


def release_command(state_dir: Path, *options: str) -> str:
    """Return the command that restores what the agent with *state_dir* holds, for messages."""
    words = "sweetpoint", "release", *options, "--state-dir", str(state_dir)
    return shlex.join(words)


def owners(state_dir: Path) -> list[int]:
    """Return the pids in the lock file that are alive, in the order in which to stop them.

    A pid that another process has now is left out, by its start time, and so is a process that has
    ended and waits for its parent. Empty without a lock file.
    """
    try:
        lines = read_file(state_dir / "lock").decode("ascii").splitlines()
        named = [(int(pid), start) for pid, start in (line.split() for line in lines)]
    except (OSError, ValueError):
        return []
    return [pid for pid, start in named if start == _start_time(pid)]


def _start_time(pid: int) -> str | None:
    # proc_pid_stat(5): fields 3 and 22; the name in field 2 may hold spaces and ")".
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False


def _open_lock(path: Path) -> int:
    directory = open_directory(path.parent)
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            return os.open("lock", os.O_RDWR | os.O_CREAT | flags, 0o600, dir_fd=directory)
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise
        # flock(2) needs no right to write. Without the file the directory is locked.
        try:
            return os.open("lock", os.O_RDONLY | flags, dir_fd=directory)
        except FileNotFoundError:
            return os.dup(directory)
    finally:
        os.close(directory)


def has_records(state_dir: Path) -> bool:
    """Return whether there may be records of held knobs below *state_dir*.

    Without imports: after an agent that ended itself, and at most starts, there are none.
    """
    try:
        with os.scandir(state_dir / JOURNAL) as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False
    except OSError:
        return True  # a restore reports what is wrong


def open_directory(path: Path) -> int:
    """Return a descriptor of the directory *path*, which is no link.

    :raises OSError: there is no such directory, it was removed and is only mounted there, or it
        does not belong to root alone; the text is in ``strerror``.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        check_owner(fd, path)
        if not os.fstat(fd).st_nlink:  # as in a container, by the host
            raise FileNotFoundError(
                errno.ENOENT, "it was removed, but is still mounted here", str(path)
            )
    except OSError:
        os.close(fd)
        raise
    return fd


def read_file(path: Path, at_most: int = -1) -> bytes:
    """Return the content of the file *path*, which is no link; the first *at_most* bytes of it.

    :raises OSError: the file cannot be read, or does not belong to root alone; the text is in
        ``strerror``.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        check_owner(fd, path)
        return file.read(at_most)


def check_owner(fd: int, path: Path) -> None:
    """Check that the file or directory *fd* belongs to root alone; *path* is for the message.

    :raises OSError: it does not; the text is in ``strerror``.
    """
    # The user of the process counts like root: the agent runs as root, other uses of the journal
    # need not.
    found = os.fstat(fd)
    if found.st_uid not in (0, os.geteuid()):
        problem = f"it belongs to user {found.st_uid}, not to root"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = f"others than its owner may write it (mode {stat.S_IMODE(found.st_mode):04o})"
    else:
        return
    remedy = f"check it, then 'chown root {path}; chmod go-w {path}'"
    text = f"{problem}, so its content is not trusted ({remedy})"
    raise PermissionError(errno.EPERM, text, str(path))


def write_json(path: Path, value: object) -> None:
    """Replace the content of *path* by *value* as JSON, atomically; only root may read the file.

    Without fsync(2): the file must survive a crash of the process, not of the machine.

    :raises OSError: the file cannot be written.
    """
    new = path.with_suffix(".new")
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(value, file)
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()  # it may have taken the last space, which the journal needs
        raise
