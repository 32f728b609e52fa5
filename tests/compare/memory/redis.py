# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""redis that holds as much data as it is told to, and is started again when it dies."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
import contextlib
from pathlib import Path
import signal
import socket
import threading
import time

from controller.demo.cgroups import DemoError
from controller.demo.programs import Process, free_port, start
from tests.compare.services import Service

__all__ = ("REDIS", "Redis")

# With its header a value fills a size of jemalloc (10 KiB), so that data and memory are alike.
_VALUE = b"v" * 10_000
_PER_MIB = 102.4
_POLL_S = 0.02
_START_WITHIN_S = 20.0
# A pipeline of so many values, for an even growth.
_AT_ONCE = 16
REDIS = Service(name="redis", rate=2000.0, request=r"GET key\r\n", profile="default", lasting=True)


class Redis:
    """The service on ``port``; its processes *join* a cgroup. ``deaths`` counts their ends.

    It listens when its data are loaded, as with a readiness probe.
    """

    def __init__(self, home: Path, join: Callable[[], None]) -> None:
        self._home, self._join = home, join
        self.port = free_port()
        self.deaths = 0
        self.wanted_mib = 0.0
        self._path = home / "redis.sock"
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._process: Process | None = None
        self._keeper = ThreadPoolExecutor(1)
        self._kept: Future[None] | None = None

    def begin(self, first_mib: float) -> None:
        """Start it with *first_mib* of data.

        :raises DemoError: it does not start.
        """
        self.wanted_mib = first_mib
        self._kept = self._keeper.submit(self._keep)
        if not self._ready.wait(_START_WITHIN_S):
            raise DemoError("redis does not start")

    def end(self) -> None:
        """End it.

        :raises Exception: it was not kept running.
        """
        self._stop.set()
        self._keeper.shutdown()
        if self._process is not None:
            self._process.stop(signal.SIGKILL)
        if self._kept is not None:
            self._kept.result()

    def _keep(self) -> None:
        while not self._stop.is_set():
            self._path.unlink(missing_ok=True)
            command = ["redis-server", "--port", "0", "--unixsocket", str(self._path)]
            command += ["--save", "", "--bind", "127.0.0.1", "--appendonly", "no"]
            self._process = start("redis", command, self._home, join=self._join)
            with contextlib.suppress(OSError):
                self._fill(self._process)
            if self._stop.is_set():
                return
            self._process.popen.wait(_START_WITHIN_S)
            self.deaths += 1

    def _fill(self, process: Process) -> None:
        """Load the data, listen, and write more as ``wanted_mib`` grows, until it dies."""
        with contextlib.closing(self._connect(process)) as connection:
            written = 0
            _write(connection, "key", 1)
            is_open = False
            while not self._stop.is_set():
                wanted = int(self.wanted_mib * _PER_MIB)
                if written < wanted:
                    count = min(_AT_ONCE, wanted - written)
                    _write(connection, f"value:{written}:", count)
                    written += count
                    continue
                if not is_open:
                    _call(connection, b"CONFIG SET port %d\r\n" % self.port)
                    is_open = True
                    self._ready.set()
                process_ended = process.popen.poll() is not None
                if process_ended:
                    return
                self._stop.wait(_POLL_S)

    def _connect(self, process: Process) -> socket.socket:
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(self._path))
            except OSError:
                connection.close()
                if process.popen.poll() is not None or self._stop.is_set():
                    raise
                time.sleep(_POLL_S)
                continue
            connection.settimeout(_START_WITHIN_S)
            return connection


def _write(connection: socket.socket, name: str, count: int) -> None:
    """Write *count* values, each with a name of its own; a single one has the *name*."""
    names = (
        [name] if count == 1 and not name.endswith(":") else [f"{name}{n}" for n in range(count)]
    )
    rows = (
        b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n"
        % (len(each), each.encode(), len(_VALUE), _VALUE)
        for each in names
    )
    connection.sendall(b"".join(rows))
    _receive(connection, count)


def _call(connection: socket.socket, request: bytes) -> None:
    connection.sendall(request)
    _receive(connection, 1)


def _receive(connection: socket.socket, count: int) -> None:
    """Receive the answer +OK of *count* requests.

    :raises OSError: it is another one, or the connection ended.
    """
    left = 5 * count
    while left:
        data = connection.recv(left)
        if not data or b"-" in data:
            raise OSError(f"redis answers {data!r}")
        left -= len(data)
