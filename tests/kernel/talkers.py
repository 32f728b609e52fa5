# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Processes in cgroups of a test that exchange a known number of bytes."""

from pathlib import Path
import subprocess
import sys
from typing import Self

from tests.kernel.netns import inside
from tests.support.waiting import DEADLINE_S

__all__ = ("UDP_HEADERS", "Talker")

UDP_HEADERS = 28  # IPv4 20, UDP 8

# A socket belongs to the cgroup of the process at its creation, so the process joins first.
_TALKER = """
import os, socket, sys, time
cgroup, role, address, port, size, count, deadline_s = sys.argv[1:]
endpoint, size, count = (address, int(port)), int(size), int(count)
with open(cgroup + "/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))

def report(text):
    print(text, flush=True)

if role == "echo":           # returns datagrams until it is killed
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(endpoint)
    report(server.getsockname()[1])
    while True:
        data, sender = server.recvfrom(65536)
        server.sendto(data, sender)
elif role == "serve":        # like echo, with count microseconds of CPU time for each datagram
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(endpoint)
    report(server.getsockname()[1])
    while True:
        data, sender = server.recvfrom(65536)
        until = time.thread_time() + count / 1e6
        while time.thread_time() < until:
            pass
        server.sendto(data, sender)
elif role == "ask":          # sends datagrams and waits for the answer to each
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.settimeout(float(deadline_s))
    client.connect(endpoint)
    report("ready")
    sys.stdin.readline()
    for _ in range(count):
        client.send(bytes(size))
        client.recv(65536)
    report("done")
elif role == "sink":         # reads one TCP stream to its end
    server = socket.create_server(endpoint)
    report(server.getsockname()[1])
    connection, _ = server.accept()
    while connection.recv(1 << 20):
        pass
    connection.close()
    report("done")
elif role == "source":
    report("ready")
    sys.stdin.readline()
    with socket.create_connection(endpoint, timeout=float(deadline_s)) as client:
        for _ in range(count):
            client.sendall(bytes(size))
    report("done")
sys.stdin.readline()
"""


class Talker:
    """A process in *cgroup*; ``first`` is its first line: the port of a server, or ``ready``.

    A ``with`` block ends it.
    """

    def __init__(
        self,
        cgroup: Path,
        role: str,
        *,
        address: str = "127.0.0.1",
        port: int = 0,
        size: int = 0,
        count: int = 0,
        netns: str | None = None,
    ) -> None:
        numbers = map(str, (port, size, count, DEADLINE_S))
        command = (sys.executable, "-S", "-c", _TALKER, str(cgroup), role, address, *numbers)
        self._process = subprocess.Popen(
            command if netns is None else inside(netns, command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first = self._line()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def go(self) -> None:
        """Start the transfer."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def done(self) -> None:
        """Wait until the transfer is complete."""
        assert self._line() == "done"

    def end(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()
