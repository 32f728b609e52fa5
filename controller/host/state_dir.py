# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One agent per host: a lock file that also says who holds it.

The lock is an flock, so it ends with the last process that has it open and never goes stale;
the file itself stays. Guardian and agent both hold it: as long as one of them lives, nobody
else touches the knobs. Standard library only, because the guardian imports it.

A small JSON file beside the journal, for who runs here next.
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
    """The lock is held by somebody else or cannot be made; the message says what to do.

    ``held`` tells the two apart.
    """

    def __init__(self, message: str, *, held: bool) -> None:
        super().__init__(message)
        self.held = held


class Lock:
    """The lock of *state_dir*, held from construction until ``close``.

    :raises LockError: another agent has it, or the file cannot be made.
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
            pids = " and ".join(map(str, owners(state_dir))) or "a process that just starts"
            raise LockError(
                f"sweetpoint already runs on this host ({pids} holds {self.path}): stop it with "
                "'sweetpoint release --stop', or leave it running",
                held=True,
            ) from None
        self.set_owners([os.getpid()])

    def fileno(self) -> int:
        """Return the fd, for keeping it open across a clean-up of fds."""
        return self._fd

    def set_owners(self, pids: Iterable[int]) -> None:
        """Write down who is to be asked to stop, the first first."""
        lines = "".join(f"{pid} {_start_time(pid)}\n" for pid in pids)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, lines.encode("ascii"), 0)

    def close(self) -> None:
        """Give up this process's hold; the lock ends with the last holder."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def owners(state_dir: Path) -> list[int]:
    """Return the living processes named in the lock file, in the order to stop them.

    A pid that was reused by another process since is left out. Empty without a lock file.
    """
    try:
        lines = (state_dir / "lock").read_text(encoding="ascii").splitlines()
        named = [(int(pid), start) for pid, start in (line.split() for line in lines)]
    except (OSError, ValueError):
        return []
    return [pid for pid, start in named if start == _start_time(pid)]


def _start_time(pid: int) -> str | None:
    # Field 22 of /proc/PID/stat; the name in field 2 may hold blanks and brackets.
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


def write_json(path: Path, value: object) -> None:
    """Replace *path* by *value*, whole or not at all; only root may read it.

    Not synced: it must outlive processes, not the machine.

    :raises OSError: it cannot be written.
    """
    new = path.with_suffix(".new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump(value, file)
    new.replace(path)
