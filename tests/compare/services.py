# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The services of the comparison and their open-loop load.

nginx, memcached and redis get requests from ``tests.compare.client``; postgres gets transactions
from pgbench at a rate, which counts latency from the time that its schedule intended, too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
from dataclasses import dataclass
from pathlib import Path
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np

from controller.core.units import NS_PER_SEC
from controller.demo.cgroups import DemoError
from controller.demo.programs import Process, free_port, start, start_nginx
from tests.compare.client import Segment
from tests.compare.link import HOST, LOOPBACK, Link

__all__ = ("SERVICES", "SHAPES", "Service", "Traffic")

Join = Callable[[], None]
PORTS_WITHIN_S = 15.0
CONNECTIONS = 16
PGBENCH_CLIENTS = 8
POSTGRES_USER = "postgres"
POSTGRES_BINARIES = Path("/usr/lib/postgresql")
_CLIENT = Path(__file__).with_name("client.py")

# Factors of the service's rate in seconds of a block, repeated to its length.
SHAPES: Mapping[str, Sequence[Segment]] = {
    "steady": ((10.0, 1.0),),
    "stepped": ((5.0, 0.5), (5.0, 1.5)),
    "bursty": ((1.5, 0.5), (0.5, 2.5)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service: requests per second at factor 1, the request, the profile of the project.

    ``remote``: its clients are at the other end of a link that the host shares. ``lasting``: they
    connect again when it was started again.
    """

    name: str
    rate: float
    request: str
    profile: str
    remote: bool = False
    lasting: bool = False

    def segments(self, shape: str, seconds: float) -> list[Segment]:
        """Return the load of *shape* over *seconds*."""
        found: list[Segment] = []
        left_s = seconds
        while left_s > 1e-9:
            for length_s, factor in SHAPES[shape]:
                part_s = min(length_s, left_s)
                if part_s > 1e-9:
                    found.append((part_s, factor * self.rate))
                left_s -= part_s
        return found

    @contextlib.contextmanager
    def running(self, home: Path, join: Join) -> Iterator[int]:
        """Run the service, whose processes *join* a cgroup; yield its port.

        :raises DemoError: it does not start.
        """
        if self.name == "nginx":
            process, port = start_nginx(home, join)
        elif self.name == "postgres":
            process, port = _start_postgres(home, join)
        else:
            port = free_port()
            process = start(self.name, _COMMANDS[self.name](port), home, join=join)
            _wait_for_port(process, port)
        try:
            if self.name in _SET:
                _set_value(port, _SET[self.name])
            yield port
        finally:
            # An orderly end: SIGINT is postgres's fast shutdown.
            process.stop(signal.SIGINT, 10.0)


def _memcached(port: int, addresses: str = LOOPBACK) -> list[str]:
    return ["memcached", "-u", "nobody", "-l", addresses, "-p", str(port), "-t", "2"]


_COMMANDS: Mapping[str, Callable[[int], list[str]]] = {
    "memcached": _memcached,
    # The start and the stored value go over loopback.
    "memcached-remote": lambda port: _memcached(port, f"{LOOPBACK},{HOST}"),
    "redis": lambda port: [
        *("redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1")
    ],
}
_VALUE = "v" * 1000
_SET_MEMCACHED = f"set key 0 0 {len(_VALUE)}\r\n{_VALUE}\r\n"
_SET = {
    "memcached": _SET_MEMCACHED,
    "memcached-remote": _SET_MEMCACHED,
    "redis": f"SET key {_VALUE}\r\n",
}
_GET_MEMCACHED = r"get key\r\n"
SERVICES: Mapping[str, Service] = {
    each.name: each
    for each in (
        Service(
            name="nginx",
            rate=2000.0,
            request=r"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n",
            profile="nginx",
        ),
        Service(name="memcached", rate=2000.0, request=_GET_MEMCACHED, profile="memcached"),
        Service(
            name="memcached-remote",
            rate=2000.0,
            request=_GET_MEMCACHED,
            profile="memcached",
            remote=True,
        ),
        Service(name="redis", rate=2000.0, request=r"GET key\r\n", profile="redis"),
        Service(name="postgres", rate=400.0, request="", profile="default"),
    )
}


class Traffic:
    """The load of one block on *port*, whose first request is sent at *start_ns*.

    The client of a remote service is at the other end of *link*.
    """

    def __init__(
        self,
        service: Service,
        port: int,
        segments: Sequence[Segment],
        start_ns: int,
        home: Path,
        link: Link | None = None,
    ) -> None:
        self._service, self._port, self._home = service, port, home
        self._segments, self._start_ns = segments, start_ns
        self._output = home / "latencies"
        self._output.unlink(missing_ok=True)
        self._client: Process | None = None
        if service.name != "postgres":
            address = HOST if service.remote else LOOPBACK
            lasting = ["--lasting"] if service.lasting else []
            command = [sys.executable, str(_CLIENT), *lasting, address, str(port)]
            command += [str(CONNECTIONS)]
            command += [str(self._output), str(start_ns), service.request]
            command += [f"{seconds}:{rate}" for seconds, rate in segments]
            if service.remote:
                assert link is not None
                command = link.among_clients(command)
            self._client = start("client", command, home)

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        """Wait for the end; return intended times and latencies in ns, -1 without an answer.

        :raises DemoError: the client failed.
        """
        if self._client is None:
            return self._run_pgbench()
        within_s = (self._start_ns - time.monotonic_ns()) / NS_PER_SEC + 30.0
        within_s += sum(seconds for seconds, _ in self._segments)
        code = self._client.popen.wait(within_s)
        if code != 0:
            raise DemoError(f"the client ended with {code}: {self._client.log.read_text()[-300:]}")
        found = np.frombuffer(self._output.read_bytes(), "<i8").reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def check(self) -> None:
        """Check that the client runs.

        :raises DemoError: it ended.
        """
        assert self._client is not None
        self._client.check()

    def stop(self) -> None:
        """End the client before its time, without a result."""
        if self._client is not None:
            self._client.stop()

    def _run_pgbench(self) -> tuple[np.ndarray, np.ndarray]:
        """Run pgbench for each segment; its log has the end and the latency of a transaction."""
        time.sleep(max(0.0, (self._start_ns - time.monotonic_ns()) / NS_PER_SEC))
        wall_to_monotonic_ns = time.monotonic_ns() - time.time_ns()
        rows = []
        for number, (seconds, rate) in enumerate(self._segments):
            prefix = self._home / f"pgbench-{number}"
            # Above the service and the batch work, like the client of the other services.
            command = ["chrt", "--fifo", "1", "pgbench", "-h", "127.0.0.1"]
            command += ["-p", str(self._port), "-U", POSTGRES_USER]
            command += ["-S", "-n", "-c", str(PGBENCH_CLIENTS), "-R", f"{rate:.0f}"]
            command += [
                "-T",
                f"{round(seconds)}",
                "-l",
                f"--log-prefix={prefix}",
                POSTGRES_USER,
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
            if done.returncode != 0:
                raise DemoError(f"pgbench ended with {done.returncode}: {done.stderr[-300:]}")
            for log in self._home.glob(f"{prefix.name}.*"):
                rows += [line.split() for line in log.read_text().splitlines()]
                log.unlink()
        latency_ns = np.array([int(row[2]) * 1000 for row in rows], np.int64)
        ended_ns = np.array(
            [int(row[4]) * NS_PER_SEC + int(row[5]) * 1000 for row in rows], np.int64
        )
        return ended_ns + wall_to_monotonic_ns - latency_ns, latency_ns


def _start_postgres(home: Path, join: Join) -> tuple[Process, int]:
    binaries = sorted(POSTGRES_BINARIES.glob("*/bin"))
    if not binaries:
        raise DemoError("postgres is missing: tools/bootstrap bench installs it")
    user = pwd.getpwnam(POSTGRES_USER)
    data = home / "postgres"
    shutil.rmtree(data, ignore_errors=True)  # of the last mix with postgres
    data.mkdir()
    shutil.chown(data, user.pw_uid, user.pw_gid)
    setpriv = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    initdb = [str(binaries[-1] / "initdb"), "-D", str(data), "-A", "trust", "--no-sync"]
    subprocess.run([*setpriv, *initdb], check=True, capture_output=True, cwd="/")
    port = free_port()
    command = [*setpriv, str(binaries[-1] / "postgres"), "-D", str(data), "-p", str(port)]
    command += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
    process = start("postgres", command, home, join=join)
    _wait_for_port(process, port)
    init = ["pgbench", "-h", "127.0.0.1", "-p", str(port), "-U", POSTGRES_USER, "-i", "-s", "5"]
    subprocess.run([*init, "-q", POSTGRES_USER], check=True, capture_output=True)
    return process, port


def _wait_for_port(process: Process, port: int) -> None:
    deadline_s = time.monotonic() + PORTS_WITHIN_S
    while time.monotonic() < deadline_s:
        process.check()
        with contextlib.suppress(OSError), contextlib.closing(_connect(port)):
            return
        time.sleep(0.1)
    raise DemoError(f"{process.name} does not listen on port {port}")


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=1.0)


def _set_value(port: int, text: str) -> None:
    with contextlib.closing(_connect(port)) as connection:
        connection.sendall(text.encode())
        connection.recv(100)
