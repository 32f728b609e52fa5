# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A ring of files: lines are appended in compressed blocks, and the oldest file goes first.

The files ``PREFIX-NUMBER.jsonl.gz`` lie in a directory of the mode 0700 and hold gzip members, one
for each block, so zcat(1) reads them and each block has a checksum. A block that was cut off by a
crash, or damaged later, costs itself only: the reader continues at the next member. Every file
starts with the block that ``head`` returns. Standard library only.
"""

from collections.abc import Callable, Iterator
import contextlib
import os
from pathlib import Path
import re
import stat
import zlib

from controller.host.state_dir import check_owner
from controller.host.store import open_data_dir

__all__ = ("Ring", "RingReader", "write_whole")

_GZIP = 31  # wbits of zlib for a gzip member
_MAGIC = b"\x1f\x8b\x08"
_LEVEL = 1
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# A block of an agent has some hundred KiB of lines; more is damage, or not ours.
_MAX_BLOCK = 64 << 20
# A crash loop must not replace the history by files with one header each: a file is continued until
# it is full. This many files make the part that is lost with the oldest one small.
_FILES = 16


class Ring:
    """Appends blocks to the files of one *prefix* in *directory*, at most *max_bytes* in all.

    :param head: the block with which a file starts; called for each new file.
    """

    def __init__(
        self, directory: Path, prefix: str, max_bytes: int, head: Callable[[], bytes]
    ) -> None:
        self._directory = directory
        self._prefix = prefix
        self._max_bytes = max_bytes
        self._head = head

    def append(self, lines: bytes) -> None:
        """Append *lines* as one block; a block that cannot be written whole is taken back.

        :raises OSError: it cannot be written; a later call may succeed.
        """
        block = _compress(lines)
        with contextlib.suppress(FileExistsError):
            self._directory.parent.mkdir(mode=0o700)
        os.close(open_data_dir(self._directory.parent, create=True))
        directory = open_data_dir(self._directory, create=True)
        try:
            sizes = _sizes(directory, self._prefix)
            newest = max(sizes, default=0)
            if not newest or sizes[newest] >= self._max_bytes // _FILES:
                newest += 1
            self._drop(directory, sizes, newest, len(block))
            self._append(directory, _name(self._prefix, newest), block)
        finally:
            os.close(directory)

    def _drop(self, directory: int, sizes: dict[int, int], newest: int, more: int) -> None:
        """Remove the oldest files until *more* bytes fit."""
        total = sum(sizes.values()) + more
        for number in sorted(sizes):
            if total <= self._max_bytes or number == newest:
                return
            os.unlink(_name(self._prefix, number), dir_fd=directory)
            total -= sizes[number]

    def _append(self, directory: int, name: str, block: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _OPEN
        fd = os.open(name, flags, 0o600, dir_fd=directory)
        try:
            check_owner(fd, self._directory / name)
            size = os.fstat(fd).st_size
            try:
                head = b"" if size else self._head()
                write_whole(fd, _compress(head) + block if head else block)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, size)
                if not size:
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=directory)
                raise
        finally:
            os.close(fd)


class RingReader:
    """Reads the lines of one *prefix* in *directory*, the oldest first.

    ``damaged`` counts the places at which something could not be read, ``problem`` is the last one
    in words.
    """

    def __init__(self, directory: Path, prefix: str) -> None:
        self._directory = directory
        self._prefix = prefix
        self.damaged = 0
        self.problem = ""

    def lines(self, since_s: float = 0.0) -> Iterator[bytes]:
        """Yield the lines, without line breaks, of all blocks that can be read.

        :param since_s: files that were last written before this time (since 1970) are left out.

        :raises OSError: there is no such directory, or it does not belong to root alone.
        """
        directory = open_data_dir(self._directory, create=False)
        try:
            for number in sorted(_sizes(directory, self._prefix)):
                name = _name(self._prefix, number)
                try:
                    data = self._read(directory, name, since_s)
                except FileNotFoundError:
                    continue  # it was the oldest one
                except OSError as error:
                    self._damage(f"{name}: {error.strerror}")
                    continue
                for block in self._blocks(name, data):
                    yield from block.splitlines()
        finally:
            os.close(directory)

    def _read(self, directory: int, name: str, since_s: float) -> bytes:
        fd = os.open(name, os.O_RDONLY | _OPEN, dir_fd=directory)
        with os.fdopen(fd, "rb") as file:
            check_owner(fd, self._directory / name)
            return file.read() if os.fstat(fd).st_mtime >= since_s else b""

    def _blocks(self, name: str, data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data):
            reader = zlib.decompressobj(_GZIP)
            problem = "incomplete, or too large"
            try:
                block = reader.decompress(data[at:], _MAX_BLOCK)
            except zlib.error as error:
                problem = str(error)
            if reader.eof:
                at = len(data) - len(reader.unused_data)
                yield block
                continue
            self._damage(f"{name}: block at byte {at}: {problem}")
            at = data.find(_MAGIC, at + 1)
            if at < 0:
                return

    def _damage(self, problem: str) -> None:
        self.damaged += 1
        self.problem = problem


def _compress(data: bytes) -> bytes:
    writer = zlib.compressobj(_LEVEL, wbits=_GZIP)
    return writer.compress(data) + writer.flush()


def write_whole(fd: int, data: bytes) -> None:
    """Write all of *data* to the file *fd*.

    :raises OSError: it cannot be written; a part of it may have been.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _name(prefix: str, number: int) -> str:
    return f"{prefix}-{number:08}.jsonl.gz"


def _sizes(directory: int, prefix: str) -> dict[int, int]:
    """Return the sizes of the regular files of *prefix* by their numbers."""
    pattern = re.compile(rf"{prefix}-(\d{{8}})\.jsonl\.gz")
    sizes = {}
    for name in os.listdir(directory):
        if found := pattern.fullmatch(name):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    sizes[int(found[1])] = status.st_size
    return sizes
