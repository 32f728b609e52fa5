# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A link that the host shares: between it and the clients is the port of a switch.

    host                     switch                      clients
    up0 10.77.0.1 --- sw0 10.77.0.2, sw1 10.77.1.1 --- up1 10.77.1.2

Packets to the clients wait in the port ``sw1``, which sends ``MBIT`` and drops what exceeds its
buffer of 10 ms. Host, switch and clients are network namespaces without names: they vanish with
their last process.
"""

from collections.abc import Mapping, Sequence
import os
from pathlib import Path
import subprocess
from typing import Any

from controller.demo.cgroups import DemoError
from controller.demo.programs import Process, start
from controller.host.facts import enter_new_network_namespace
from tests.kernel.netns import inside
from tests.support.temporary import Temporary
from tests.support.waiting import eventually

__all__ = ("BUFFER_S", "HOST", "LOOPBACK", "MBIT", "NETWORK", "PORT", "SINK", "Link")

LOOPBACK, HOST, SINK = "127.0.0.1", "10.77.0.1", "10.77.1.2"
PORT = "sw1"
MBIT = 200
BUFFER_S = 0.010
_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp
# What the agent is told: a little below the port, so that packets wait where they have tiers.
NETWORK: Mapping[str, Any] = {
    "devices": [{"name": "up0", "egress": f"{MBIT * 95 // 100}mbit", "ingress": "off"}]
}


class Link(Temporary):
    """The namespaces, of which the calling process enters that of the host and stays in it.

    :param home: directory for the messages of programs.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._processes: list[Process] = []
        self._switch = self._clients = 0

    def make(self) -> None:
        """Make the namespaces and enter that of the host.

        :raises DemoError: the kernel refuses it, or a program is missing.
        """
        try:
            enter_new_network_namespace()
        except OSError as error:
            raise DemoError(f"no network namespace can be made: {error.strerror}") from error
        self._switch, self._clients = self._namespace("switch"), self._namespace("clients")
        self._connect()

    def close(self) -> None:
        """End what holds the other namespaces."""
        for process in self._processes:
            process.stop()

    def among_clients(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs *command* where the clients are."""
        return _in_namespace_of(self._clients, command)

    def in_switch(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs *command* in the switch."""
        return _in_namespace_of(self._switch, command)

    def _connect(self) -> None:
        switch, clients = str(self._switch), str(self._clients)
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "up0", "type", "veth", "peer", "sw0", "netns", switch)
        _run(*self.in_switch(("sysctl", "-qw", "net.ipv4.ip_forward=1")))
        _run(
            *self.in_switch(("ip", "link", "add", PORT, "type", "veth")),
            *("peer", "up1", "netns", clients),
        )
        for pid, device, address in (
            (os.getpid(), "up0", HOST),
            (self._switch, "sw0", "10.77.0.2"),
            (self._switch, PORT, "10.77.1.1"),
            (self._clients, "up1", SINK),
        ):
            words = ("address", "add", f"{address}/24", "dev", device)
            _run(*_in_namespace_of(pid, ("ip", *words)))
            _run(*_in_namespace_of(pid, ("ip", "link", "set", device, "up")))
        _run("ip", "route", "add", "default", "via", "10.77.0.2")
        _run(*self.among_clients(("ip", "route", "add", "default", "via", "10.77.1.1")))
        buffer_bytes = round(MBIT * 1e6 / 8 * BUFFER_S)
        rate = ("rate", f"{MBIT}mbit", "burst", "64kb", "limit", str(buffer_bytes))
        _run(*self.in_switch(("tc", "qdisc", "add", "dev", PORT, "root", "tbf", *rate)))
        sink = start("sink", self.among_clients(("iperf3", "-s", "-B", SINK)), self._home)
        self._processes.append(sink)

        def listens() -> bool:
            sink.check()
            sockets = Path(f"/proc/{self._clients}/net/tcp").read_text().splitlines()[1:]
            return any(line.split()[3] == _LISTEN for line in sockets)

        eventually("a sink that listens", listens)

    def _namespace(self, name: str) -> int:
        """Start a process in a network namespace of its own; return its pid."""
        holder = start(name, ("unshare", "--net", "sleep", "infinity"), self._home)
        self._processes.append(holder)
        pid, ours = holder.popen.pid, _namespace_of(os.getpid())

        def is_made() -> bool:
            holder.check()
            return _namespace_of(pid) != ours

        eventually("a network namespace", is_made)
        return pid


def _namespace_of(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def _in_namespace_of(pid: int, command: Sequence[str]) -> list[str]:
    return inside(f"/proc/{pid}/ns/net", command)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoError(f"{' '.join(command)}: {done.stderr.strip()}")
