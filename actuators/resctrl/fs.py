# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Groups of resctrl, held by directory fds; every refusal carries what the kernel says of it.

resctrl leaves the reason of the last refusal in ``info/last_cmd_status``; some refusals leave
``ok`` there (an unknown domain), so the error number is reported beside it.
"""

import contextlib
import os
from pathlib import Path
from typing import ClassVar

from actuators.base import GoneError, RefusedError
from actuators.kernfs import Directory, classified
from controller.core.model import Target

__all__ = ("PREFIX", "Group", "GroupPath", "monitored_by_others")

# Groups whose names begin like this are ours; no other is ever made or removed.
PREFIX = "sweetpoint-"


class Group(Directory):
    """One open control or monitoring group, the root group included; errors as ``Directory``.

    :param target: ``scope`` is the mount, ``path`` the group below it, ``id`` the inode to find.
    """

    noun: ClassVar[str] = "resctrl group"
    always: ClassVar[str] = "tasks"

    def __init__(self, target: Target) -> None:
        self._mount = Path(target.scope)
        super().__init__(self._mount, target.path, target.id)

    def _failure(self, error: OSError, what: str) -> Exception:
        return _with_status(self._mount, super()._failure(error, what))


class GroupPath(Directory):
    """Where a group is or could be: the open directory above it, and its name there.

    :raises GoneError: the directory above is gone, or resctrl is not mounted there.
    """

    noun: ClassVar[str] = "resctrl directory"
    always: ClassVar[str] = "."

    def __init__(self, target: Target) -> None:
        self._mount = Path(target.scope)
        above, _, self.name = target.path.rpartition("/")
        super().__init__(self._mount, above)
        self.group = target.path
        if not (self._mount / "info" / "last_cmd_status").exists():
            self.close()
            raise GoneError(f"resctrl is not mounted on {self._mount}")

    def found(self) -> int | None:
        """Return the inode number of the group, ``None`` if there is none."""
        try:
            return os.stat(self.name, dir_fd=self._fd, follow_symlinks=False).st_ino
        except FileNotFoundError:
            return None

    def make(self) -> None:
        """Make the group.

        :raises GoneError: the directory above was removed.
        :raises RefusedError: there are as many as the hardware can tell apart (ENOSPC), or one of
            this name (EEXIST).
        """
        try:
            os.mkdir(self.name, 0o755, dir_fd=self._fd)
        except FileExistsError as error:
            raise RefusedError(error.errno or 0, f"{self.group}: is there already") from None
        except FileNotFoundError:
            raise GoneError(f"{self.group}: what it was to be made in was removed") from None
        except OSError as error:
            failure = classified(error, f"cannot make resctrl group {self.group}")
            raise _with_status(self._mount, failure) from None

    def remove(self) -> None:
        """Remove the group; its tasks fall back to the group above.

        :raises GoneError: there is none.
        :raises RefusedError: it is in use.
        """
        try:
            os.rmdir(self.name, dir_fd=self._fd)
        except FileNotFoundError:
            raise GoneError(f"no resctrl group {self.group}") from None
        except OSError as error:
            failure = classified(error, f"cannot remove resctrl group {self.group}")
            raise _with_status(self._mount, failure) from None


def monitored_by_others(mount: Path) -> frozenset[int]:
    """Return the tasks of the root group that somebody else measures in a group of their own."""
    found: set[int] = set()
    for group in (mount / "mon_groups").glob("*"):
        if not group.name.startswith(PREFIX):
            with contextlib.suppress(OSError):
                found.update(map(int, (group / "tasks").read_text(encoding="ascii").split()))
    return frozenset(found)


def _with_status(mount: Path, failure: Exception) -> Exception:
    if not isinstance(failure, RefusedError):
        return failure
    status = "ok"
    with contextlib.suppress(OSError):
        status = (mount / "info" / "last_cmd_status").read_text(encoding="ascii").strip()
    if status == "ok":
        return failure
    return RefusedError(failure.errno, f"{failure} ({'; '.join(status.splitlines())})")
