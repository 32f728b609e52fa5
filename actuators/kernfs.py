# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Access to files of kernfs (cgroup and resctrl) through verified directory descriptors.

All writes to such files pass through this module. A path may belong to another object at any
moment. A directory is therefore opened component by component without following links, its inode
number (the kernfs id) is compared with the expected one, and every file is opened relative to its
descriptor. A write then reaches the intended object or fails.

A cgroup of v1 may be renamed, which leaves its settings and its id. ``Cgroup`` finds it by the id
on request, through the file handles of kernfs (exportfs_ops in fs/kernfs/mount.c, since v5.5).
"""

import contextlib
import ctypes
import errno
import os
from pathlib import Path
import struct
from types import TracebackType
from typing import ClassVar, Self

from actuators.base import GoneError, RefusedError
from controller.core.model import Target
from controller.host.facts import libc

__all__ = (
    "GONE",
    "Cgroup",
    "Directory",
    "classified",
    "open_below",
)

GONE = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV})
# ENOTDIR and ELOOP: a component of the path is a file or a link, so the object does not exist.
_NO_SUCH_OBJECT = GONE | {errno.ENOTDIR, errno.ELOOP}
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
_CHUNK_BYTES = 65536


class Directory:
    """One open directory; use as a context manager.

    :param mount: the mount point of the file system.
    :param path: the path of the directory below *mount*.
    :param inode: the expected inode number; ``None`` accepts any.
    :raises GoneError: there is no object at this path, or one with another inode number.
    :raises RefusedError: the directory may not be opened.
    :raises ValueError: the path contains ``..``.
    """

    noun: ClassVar[str] = "directory"
    # A file that every directory of this kind has until it is removed.
    permanent_file: ClassVar[str]

    def __init__(self, mount: Path, path: str, inode: int | None = None) -> None:
        self.path = path
        try:
            self._fd = open_below(mount, path)
        except OSError as error:
            if error.errno in _NO_SUCH_OBJECT:
                raise GoneError(f"no {self.noun} {path}") from None
            raise classified(error, f"{path}: cannot open") from None
        self.inode = os.fstat(self._fd).st_ino
        if inode is not None and self.inode != inode:
            self.close()
            raise GoneError(f"{path} is another {self.noun} now ({self.inode}, was {inode})")

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
        """Close the descriptor of the directory."""
        os.close(self._fd)

    def has(self, name: str) -> bool:
        """Return whether the directory has the file *name*."""
        try:
            os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def read(self, name: str) -> str:
        """Return the stripped text of the file *name*.

        :raises GoneError: the directory has been removed.
        :raises RefusedError: there is no such file, or it may not be read.
        """
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
            try:
                chunks = []
                while chunk := os.read(fd, _CHUNK_BYTES):
                    chunks.append(chunk)
                return b"".join(chunks).decode("ascii").strip()
            finally:
                os.close(fd)
        except OSError as error:
            raise self._failure(error, f"read {name}") from None

    def write(self, name: str, text: str) -> None:
        """Write *text* to the file *name* in one system call, as kernfs requires.

        The file is opened with O_NONBLOCK. Since v6.16 this keeps memory_high_write
        (mm/memcontrol.c) from reclaiming memory in the writer's context when memory.high is
        lowered below the usage.

        :raises GoneError: the directory has been removed.
        :raises RefusedError: the kernel refused the value, or there is no such file.
        """
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            fd = os.open(name, flags, dir_fd=self._fd)
            try:
                os.write(fd, text.encode("ascii"))
            finally:
                os.close(fd)
        except OSError as error:
            raise self._failure(error, f"write '{text.strip()}' to {name}") from None

    def _failure(self, error: OSError, what: str) -> Exception:
        # In a removed directory every open fails with ENOENT. In an existing one ENOENT means that
        # the kernel or this subtree does not have the file.
        if error.errno in GONE and not self.has(self.permanent_file):
            return GoneError(f"{self.noun} {self.path} was removed")
        what = f"{self.path}: cannot {what}"
        if error.errno in GONE and error.errno is not None:
            return RefusedError(error.errno, f"{what}: no such file or object")
        return classified(error, what)


def open_below(mount: Path, path: str) -> int:
    """Return a descriptor of the directory *path* below *mount*; links are not followed.

    :raises OSError: the directory cannot be opened.
    :raises ValueError: the path contains ``..``.
    """
    # O_NOFOLLOW applies to the last component only, so each component is opened separately.
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"path {path!r} leaves its file system")
    fd = os.open(mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        try:
            below = os.open(part, _OPEN_DIR, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def classified(error: OSError, what: str) -> Exception:
    """Return a RefusedError with the text *what* for expected error numbers, else *error*."""
    if error.errno in _REFUSED:
        return RefusedError(error.errno or 0, f"{what}: {error.strerror}")
    return error


class Cgroup(Directory):
    """One open cgroup; use as a context manager. Errors as ``Directory``.

    :param mount: the mount point of the hierarchy.
    :param target: ``path`` is the path below *mount*, ``id`` the expected kernfs id.
    :param renamed: whether to open a cgroup with this id at another path, too; ``path`` is then
        its present one. It takes CAP_DAC_READ_SEARCH; without it a renamed cgroup is gone.
    """

    noun: ClassVar[str] = "cgroup"
    permanent_file: ClassVar[str] = "cgroup.procs"

    def __init__(self, mount: Path, target: Target, *, renamed: bool = False) -> None:
        try:
            super().__init__(mount, target.path, target.id)
        except GoneError:
            fd = _open_by_id(mount, target.id) if renamed else -1
            if fd < 0:
                raise
            self._fd, self.inode = fd, target.id
            path = Path(f"/proc/self/fd/{fd}").readlink()
            with contextlib.suppress(ValueError):
                self.path = f"/{path.relative_to(mount)}"


# include/linux/exportfs.h: a handle of 64 bits, the kernfs id.
_FILEID_KERNFS = 0xFE


def _open_by_id(mount: Path, inode: int) -> int:
    # Returns a descriptor of the directory with this kernfs id, or -1.
    handle = struct.pack("=IiQ", 8, _FILEID_KERNFS, inode)
    try:
        root = os.open(mount, _OPEN_DIR)
    except OSError:
        return -1
    try:
        flags = ctypes.c_int(_OPEN_DIR)
        return int(libc().open_by_handle_at(ctypes.c_int(root), handle, flags))
    finally:
        os.close(root)
