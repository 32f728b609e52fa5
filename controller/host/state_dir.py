# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Files in the state directory: the lock of the agent, and small JSON files.

The lock makes sure that one agent per host writes knobs. It is an flock(2), so it ends with the
last process that has the file open and cannot become stale; the file itself stays. Guardian and
agent both hold it, and their pids are in the file. Standard library only, because the guardian
imports this module.
"""

from collections.abc import Iterable
import fcntl
import json
import os
from pathlib import Path

__all__ = (
    "Lock",
    "LockError",
    "owners",
    "write_json",
)


class LockError(Exception):
    """The lock is held by another process (``held``) or cannot be opened.

    The message says what to do.
    """

    def __init__(self, message: str, *, held: bool) -> None:
        super().__init__(message)
        self.held = held


class Lock:
    """The lock of *state_dir*, held from construction until ``close``.

    :raises LockError: another agent holds the lock, or the file cannot be opened.
    """

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "lock"
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LockError(
                f"cannot open {self.path}: {error.strerror}; run as root, or choose another "
                "state_dir",
                held=False,
            ) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            pids = " and ".join(map(str, owners(state_dir))) or "a process that is starting"
            raise LockError(
                f"sweetpoint already runs on this host ({pids} holds {self.path}): stop it with "
                "'sweetpoint release --stop', or leave it running",
                held=True,
            ) from None
        self.set_owners([os.getpid()])

    def fileno(self) -> int:
        """Return the file descriptor, which must stay open while the lock is held."""
        return self._fd

    def set_owners(self, pids: Iterable[int]) -> None:
        """Write *pids* to the file, in the order in which to stop these processes."""
        lines = "".join(f"{pid} {_start_time(pid)}\n" for pid in pids)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, lines.encode("ascii"), 0)

    def close(self) -> None:
        """Close this process's descriptor; the lock ends with the last one."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def owners(state_dir: Path) -> list[int]:
    """Return the pids in the lock file that are alive, in the order in which to stop them.

    A pid that another process has now is left out, by its start time. Empty without a lock file.
    """
    try:
        lines = (state_dir / "lock").read_text(encoding="ascii").splitlines()
        named = [(int(pid), start) for pid, start in (line.split() for line in lines)]
    except (OSError, ValueError):
        return []
    return [pid for pid, start in named if start == _start_time(pid)]


def _start_time(pid: int) -> str | None:
    # proc_pid_stat(5): field 22; the name in field 2 may hold spaces and ")".
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


def write_json(path: Path, value: object) -> None:
    """Replace the content of *path* by *value* as JSON, atomically; only root may read the file.

    Without fsync(2): the file must survive a crash of the process, not of the machine.

    :raises OSError: the file cannot be written.
    """
    new = path.with_suffix(".new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump(value, file)
    new.replace(path)
