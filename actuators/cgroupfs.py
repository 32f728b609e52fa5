# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Files of one cgroup, reached through a directory fd whose identity was checked.

The only module that opens cgroup files for actuation. A path may be taken by another cgroup
at any moment, so the directory is opened component by component without following links, its
inode number is compared with the expected kernfs id, and every file is opened relative to it:
what is written lands in the cgroup that was meant, or nowhere.
"""

import errno
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from actuators.base import GoneError, RefusedError
from controller.model import Target

__all__ = ("Cgroup",)

_GONE = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV})
# On the way to the directory also: a component is a file or a link, so no such cgroup.
_NO_SUCH_CGROUP = _GONE | {errno.ENOTDIR, errno.ELOOP}
_REFUSED = frozenset(
    {
        errno.EACCES,
        errno.EAGAIN,
        errno.EBUSY,
        errno.EINVAL,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.ERANGE,
        errno.EROFS,
    }
)
_OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_BYTES = 4096


class Cgroup:
    """One open cgroup; use as a context manager.

    :param mount: where the hierarchy is mounted.
    :param target: ``path`` is followed below the mount, ``id`` is the kernfs id to find there.
    :raises GoneError: nothing at this path, or a cgroup with another id.
    :raises RefusedError: the directory may not be entered.
    :raises ValueError: the path tries to leave the hierarchy.
    """

    def __init__(self, mount: Path, target: Target) -> None:
        self.path = target.path
        try:
            self._fd = _open_below(mount, target.path)
        except OSError as error:
            if error.errno in _NO_SUCH_CGROUP:
                raise GoneError(f"no cgroup {target.path}") from None
            raise _classified(error, f"{target.path}: cannot open") from None
        found = os.fstat(self._fd).st_ino
        if found != target.id:
            self.close()
            raise GoneError(f"{target.path} is another cgroup now ({found}, was {target.id})")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the directory fd back."""
        os.close(self._fd)

    def has(self, name: str) -> bool:
        """Return whether the cgroup has the file *name*."""
        try:
            os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def read(self, name: str) -> str:
        """Return the stripped text of the file *name* (at most one page).

        :raises GoneError: the cgroup was removed meanwhile.
        :raises RefusedError: the cgroup has no such file, or it may not be read.
        """
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
            try:
                return os.read(fd, _FILE_BYTES).decode("ascii").strip()
            finally:
                os.close(fd)
        except OSError as error:
            raise self._failure(error, f"read {name}") from None

    def write(self, name: str, text: str) -> None:
        """Write *text* to the file *name* in one system call, as kernfs wants it.

        :raises GoneError: the cgroup was removed meanwhile.
        :raises RefusedError: the kernel refused the value, or there is no such file.
        """
        try:
            fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
            try:
                os.write(fd, text.encode("ascii"))
            finally:
                os.close(fd)
        except OSError as error:
            raise self._failure(error, f"write '{text}' to {name}") from None

    def _failure(self, error: OSError, what: str) -> Exception:
        # In a removed cgroup every open fails with ENOENT; in a living one it means that this
        # kernel, or this subtree, does not have the knob.
        if error.errno in _GONE and not self.has("cgroup.procs"):
            return GoneError(f"cgroup {self.path} was removed")
        if error.errno in _GONE:
            return RefusedError(error.errno or 0, f"{self.path}: cannot {what}: no such file")
        return _classified(error, f"{self.path}: cannot {what}")


def _open_below(mount: Path, path: str) -> int:
    # O_NOFOLLOW looks at the last component only, so each component is opened on its own.
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"cgroup path {path!r} leaves its hierarchy")
    fd = os.open(mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        try:
            below = os.open(part, _OPEN_DIR, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _classified(error: OSError, what: str) -> Exception:
    if error.errno in _REFUSED:
        return RefusedError(error.errno or 0, f"{what}: {error.strerror}")
    return error
