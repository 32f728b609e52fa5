# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""nginx with many files, whose pages are its working set."""

from collections.abc import Callable
import contextlib
import http.client
import os
from pathlib import Path
import signal

from controller.demo.programs import Process, start_nginx
from tests.compare.services import Service

__all__ = ("PAGES", "Pages", "make_file")

MIB = 1 << 20
_FILES, _FILE_BYTES = 16_000, 16_000
# The last change is in the answers, which must have the same size.
_CHANGED_NS = 1_600_000_000 * 10**9
PAGES = Service(
    name="nginx",
    rate=2000.0,
    request=rf"GET /file-{{{_FILES}}} HTTP/1.1\r\nHost: localhost\r\n\r\n",
    profile="default",
)


class Pages:
    """The service on ``port``; its processes *join* a cgroup, which has the pages of its files."""

    def __init__(self, home: Path, join: Callable[[], None]) -> None:
        self._home, self._join = home, join
        self.port = 0
        self.wanted_mib = 0.0
        self._process: Process | None = None

    @property
    def deaths(self) -> int:
        """How often it ended; it is not started again."""
        return int(self._process is not None and self._process.popen.poll() is not None)

    def begin(self, _first_mib: float) -> None:
        """Start it, and let it read each file once.

        :raises DemoError: it does not start.
        """
        folder = self._home / "www"
        folder.mkdir(exist_ok=True)
        for number in range(_FILES):
            path = folder / f"file-{number:05}"
            make_file(path, _FILE_BYTES)
            os.utime(path, ns=(_CHANGED_NS, _CHANGED_NS))
        self._process, self.port = start_nginx(self._home, self._join)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30.0)
        with contextlib.closing(connection):
            for number in range(_FILES):
                connection.request("GET", f"/file-{number:05}")
                connection.getresponse().read()

    def end(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.stop(signal.SIGINT)


def make_file(path: Path, size_bytes: int) -> None:
    """Write a file of zeros unless it is there; the page cache has nothing of it afterwards.

    The pages belong to the cgroup that reads them first, which must not be that of this process.
    """
    with path.open("ab") as file:
        left = size_bytes - file.tell()
        if left > 0:
            while left > 0:
                left -= file.write(bytes(min(left, MIB)))
            file.flush()
            os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
