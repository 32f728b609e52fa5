# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that talk to each other from cgroups of a test, with a known amount of bytes."""

from collections.abc import Sequence
from pathlib import Path
import subprocess
import sys

__all__ = ("UDP_HEADERS", "Talker")

UDP_HEADERS = 28  # IPv4 20, UDP 8

# A socket belongs to the cgroup that its maker is in, so: join first, then make it.
_TALKER = """
import os, socket, sys
cgroup, role, address, port, size, count = sys.argv[1:7]
place, size, count = (address, int(port)), int(size), int(count)
with open(cgroup + "/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))

def say(*words):
    print(*words, flush=True)

if role == "echo":           # datagrams, until it is ended
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(place)
    say(server.getsockname()[1])
    while True:
        data, sender = server.recvfrom(65536)
        server.sendto(data, sender)
elif role == "ask":          # datagrams, one after the other
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.settimeout(5)
    client.connect(place)
    say("ready")
    sys.stdin.readline()
    for _ in range(count):
        client.send(bytes(size))
        client.recv(65536)
    say("done")
elif role == "sink":         # one TCP stream, read to its end
    server = socket.create_server(place)
    say(server.getsockname()[1])
    connection, _ = server.accept()
    while connection.recv(1 << 20):
        pass
    connection.close()
    say("done")
elif role == "source":
    say("ready")
    sys.stdin.readline()
    with socket.create_connection(place, timeout=10) as client:
        for _ in range(count):
            client.sendall(bytes(size))
    say("done")
sys.stdin.readline()
"""


class Talker:
    """A process in *cgroup*; ``first`` is its first word: a server's port, or ``ready``."""

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
        # Not by "ip netns exec": that mounts another /sys, without the cgroups.
        prefix: Sequence[str] = () if netns is None else ("nsenter", f"--net=/run/netns/{netns}")
        numbers = (str(port), str(size), str(count))
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-S", "-c", _TALKER, str(cgroup), role, address, *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first = self._word()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def go(self) -> None:
        """Let it talk."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def done(self) -> None:
        """Wait until it has said everything."""
        assert self._word() == "done"

    def end(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.communicate()

    def _word(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()
