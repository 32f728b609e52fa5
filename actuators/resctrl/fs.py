# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Access to resctrl groups through directory descriptors, with the kernel's reason of a refusal.

``Group`` is an existing group, with its files. ``GroupPath`` is the path of a group that may not
exist: its parent directory and its name, by which the group is created and removed.

resctrl stores the reason of the last refusal in ``info/last_cmd_status``; messages of
``RefusedError`` include that text. Some refusals (an unknown domain) leave ``ok`` there, so the
error number is always part of the message.
"""

from collections.abc import Iterable
import contextlib
import os
from pathlib import Path
from typing import ClassVar

from actuators.base import GoneError, RefusedError
from actuators.kernfs import Directory, classified
from controller.core.model import Target

__all__ = ("PREFIX", "Group", "GroupPath", "monitored_by_others", "tasks_of_ours")

# Prefix of the names of our groups. Groups with other names are never created or removed.
PREFIX = "sweetpoint-"


class Group(Directory):
    """An open control or monitoring group, or the root group; errors as ``Directory``.

    :param target: ``scope`` is the mount point, ``path`` the group below it, ``id`` the expected
        inode number.
    """

    noun: ClassVar[str] = "resctrl group"
    permanent_file: ClassVar[str] = "tasks"

    def __init__(self, target: Target) -> None:
        self._mount = Path(target.scope)
        super().__init__(self._mount, target.path, target.id)

    def _failure(self, error: OSError, what: str) -> Exception:
        return _with_status(self._mount, super()._failure(error, what))


class GroupPath(Directory):
    """The path of a group that may not exist: the open parent directory, and the group's name.

    :param target: ``scope`` is the mount point, ``path`` that of the group below it.
    :raises GoneError: there is no parent directory, or resctrl is not mounted.
    """

    noun: ClassVar[str] = "resctrl directory"
    permanent_file: ClassVar[str] = "."

    def __init__(self, target: Target) -> None:
        self._mount = Path(target.scope)
        parent, _, self.name = target.path.rpartition("/")
        super().__init__(self._mount, parent)
        self.group = target.path
        if not (self._mount / "info" / "last_cmd_status").exists():
            self.close()
            raise GoneError(f"resctrl is not mounted on {self._mount}")

    def group_inode(self) -> int | None:
        """Return the inode number of the group; ``None`` if it does not exist."""
        try:
            return os.stat(self.name, dir_fd=self._fd, follow_symlinks=False).st_ino
        except FileNotFoundError:
            return None

    def create(self) -> None:
        """Create the group.

        :raises GoneError: the parent directory has been removed.
        :raises RefusedError: the hardware has no more CLOSIDs or RMIDs (ENOSPC), or the group
            exists (EEXIST).
        """
        try:
            os.mkdir(self.name, 0o755, dir_fd=self._fd)
        except FileExistsError as error:
            raise RefusedError(error.errno or 0, f"{self.group}: exists already") from None
        except FileNotFoundError:
            raise GoneError(f"{self.group}: its parent group was removed") from None
        except OSError as error:
            failure = classified(error, f"cannot create resctrl group {self.group}")
            raise _with_status(self._mount, failure) from None

    def remove(self) -> None:
        """Remove the group; the kernel moves its tasks to the parent group.

        :raises GoneError: there is no such group.
        :raises RefusedError: the group is in use.
        """
        try:
            os.rmdir(self.name, dir_fd=self._fd)
        except FileNotFoundError:
            raise GoneError(f"no resctrl group {self.group}") from None
        except OSError as error:
            failure = classified(error, f"cannot remove resctrl group {self.group}")
            raise _with_status(self._mount, failure) from None


def monitored_by_others(mount: Path) -> frozenset[int]:
    """Return the tasks of the root group that are in monitoring groups of other programs."""
    groups = (mount / "mon_groups").glob("*")
    return _tasks(group for group in groups if not group.name.startswith(PREFIX))


def tasks_of_ours(mount: Path, *, besides: str) -> frozenset[int]:
    """Return the tasks of the control groups of ours, without those of the group *besides*."""
    return _tasks(group for group in mount.glob(f"{PREFIX}*") if group.name != besides)


def _tasks(groups: Iterable[Path]) -> frozenset[int]:
    found: set[int] = set()
    for group in groups:
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
