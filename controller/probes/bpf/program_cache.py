# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Compiled programs on disk, so that a restart does not compile them again.

A file's name is the hash of everything that the compiled program depends on, and its first line
the hash of the rest. The kernel verifies what is loaded from it as it does anything else, but runs
it with the agent's rights: only files that root alone could have written are used.

The name cannot have everything, such as the libraries below bcc. So a program that the kernel
refuses is dropped and compiled again, once: a mark beside a file says that the kernel refused it
right after it was compiled, as some kernels refuse typed programs at each start.
"""

from collections.abc import Mapping
import contextlib
from functools import cache
import hashlib
import importlib.util
import json
import os
from pathlib import Path
import stat

from controller.probes.bpf.btf import VMLINUX_BTF
from controller.probes.bpf.compiled import Compiled

__all__ = ("ProgramCache", "cache_key")

_FORMAT = 1
# Four sources in two variants, of this configuration and a few earlier ones; some 30 KiB each. And
# their marks, which are empty.
_MAX_FILES = 32
_MAX_BYTES = 4 << 20
_REFUSED = ".refused"


def cache_key(
    source: str, headers: Path, defines: Mapping[str, int], *, btf: Path = VMLINUX_BTF
) -> str:
    """Return the name under which the compiled *source* is kept.

    :param headers: the folder of the headers that *source* includes.
    :param btf: the kernel's BTF; a kernel without one has no such file.
    :raises OSError: a header cannot be read.
    """
    digest = hashlib.sha256()
    bcc = importlib.util.find_spec("bcc")
    version = Path(bcc.origin).with_name("version.py") if bcc and bcc.origin else None
    parts = (
        str(_FORMAT),
        " ".join(os.uname()[2:]),
        source,
        json.dumps(sorted(defines.items())),
        version.read_text(encoding="utf-8") if version and version.exists() else "",
        *(p.read_text(encoding="utf-8") for p in sorted(headers.rglob("*")) if p.is_file()),
    )
    for part in parts:
        digest.update(hashlib.sha256(part.encode()).digest())
    digest.update(_file_digest(btf))
    return digest.hexdigest()


@cache
def _file_digest(path: Path) -> bytes:
    # Kept, because a kernel has 5 MiB of BTF. Empty without the file.
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except FileNotFoundError:
        return b""


class ProgramCache:
    """The files in *directory*; never raises, because without it the program is compiled.

    ``problems``: one line for each file that could not be used or written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.problems: list[str] = []

    def get(self, key: str) -> Compiled | None:
        """Return the program kept as *key*; ``None`` if there is none that can be used."""
        path = self._directory / key
        try:
            self._check_directory()
            return _read(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.problems.append(f"{path} is ignored and the program compiled: {error}")
            return None

    def put(self, key: str, compiled: Compiled) -> None:
        """Keep *compiled* as *key*, and drop the oldest files beyond the limit."""
        body = json.dumps(compiled.to_json()).encode()
        path = self._directory / key
        new = path.with_suffix(f".new-{os.getpid()}")
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self._check_directory()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(new, flags, 0o600), "wb") as file:
                file.write(_hash(body) + b"\n" + body)
            new.replace(path)
            self._drop_oldest()
        except OSError as error:
            self.problems.append(f"the next start compiles again: {error}")
            with contextlib.suppress(OSError):
                new.unlink()

    def drop(self, key: str) -> None:
        """Forget the program kept as *key*."""
        with contextlib.suppress(OSError):  # its replacement is written over it
            (self._directory / key).unlink()

    def note_refusal(self, key: str) -> None:
        """Remember that the kernel refuses what *key* is, also when it is compiled again."""
        with contextlib.suppress(OSError):  # without the mark it is compiled once more
            (self._directory / f"{key}{_REFUSED}").touch(mode=0o600)

    def is_refused(self, key: str) -> bool:
        """Return whether ``note_refusal`` was called for *key*."""
        return (self._directory / f"{key}{_REFUSED}").exists()

    def _check_directory(self) -> None:
        for directory in (self._directory.parent, self._directory):
            status = directory.lstat()
            if not stat.S_ISDIR(status.st_mode):
                raise NotADirectoryError(f"{directory} is no directory")
            _check_owner(status, directory)

    def _drop_oldest(self) -> None:
        files = sorted(self._directory.iterdir(), key=lambda file: file.lstat().st_mtime_ns)
        for file in files[:-_MAX_FILES]:
            file.unlink()


def _read(path: Path) -> Compiled:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        _check_owner(status, path)
        checksum, _, body = file.read(_MAX_BYTES).partition(b"\n")
    if checksum != _hash(body):
        raise ValueError("damaged")
    return Compiled.from_json(json.loads(body))


def _check_owner(status: os.stat_result, path: Path) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} can be written by other users")


def _hash(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
