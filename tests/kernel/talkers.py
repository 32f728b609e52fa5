# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Processes in cgroups of a test that exchange a known number of bytes."""

from collections.abc import Sequence
from pathlib import Path
import subprocess
import sys

__all__ = ("UDP_HEADERS", "Talker")

UDP_HEADERS = 28  # IPv4 20, UDP 8

# A socket belongs to the cgroup of the process at its creation, so the process joins first.
_TALKER = """
import os, socket, sys, time
cgroup, role, address, port, size, count = sys.argv[1:7]
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
    client.settimeout(5)
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
    with socket.create_connection(endpoint, timeout=10) as client:
        for _ in range(count):
            client.sendall(bytes(size))
    report("done")
sys.stdin.readline()
"""


class Talker:
    """A process in *cgroup*; ``first`` is its first line: the port of a server, or ``ready``."""

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
        # Not with "ip netns exec", which mounts another /sys without the cgroups.
        prefix: Sequence[str] = () if netns is None else ("nsenter", f"--net=/run/netns/{netns}")
        numbers = (str(port), str(size), str(count))
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-S", "-c", _TALKER, str(cgroup), role, address, *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first = self._line()

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
