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
import time
from typing import Any, Self

from controller.core.units import NS_PER_SEC
from controller.demo.cgroups import DemoError
from controller.demo.programs import Process, start
from controller.host.facts import enter_new_network_namespace

__all__ = ("BUFFER_S", "HOST", "LOOPBACK", "MBIT", "NETWORK", "SINK", "Link")

LOOPBACK, HOST, SINK = "127.0.0.1", "10.77.0.1", "10.77.1.2"
MBIT = 200
BUFFER_S = 0.010
# What the agent is told: a little below the port, so that packets wait where they have tiers.
NETWORK: Mapping[str, Any] = {
    "devices": [{"name": "up0", "egress": f"{MBIT * 95 // 100}mbit", "ingress": "off"}]
}
_WITHIN_S = 5.0


class Link:
    """The namespaces, of which the calling process enters that of the host and stays in it.

    :param home: directory for the messages of programs.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._processes: list[Process] = []
        self._clients = 0

    def __enter__(self) -> Self:
        try:
            enter_new_network_namespace()
        except OSError as error:
            raise DemoError(f"no network namespace can be made: {error.strerror}") from error
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what holds the other namespaces."""
        for process in self._processes:
            process.stop()

    def among_clients(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs *command* where the clients are."""
        return _inside(self._clients, command)

    def _make(self) -> None:
        switch, self._clients = self._namespace("switch"), self._namespace("clients")
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "up0", "type", "veth", "peer", "sw0", "netns", str(switch))
        _run(*_inside(switch, ("sysctl", "-qw", "net.ipv4.ip_forward=1")))
        _run(
            *_inside(switch, ("ip", "link", "add", "sw1", "type", "veth")),
            *("peer", "up1", "netns", str(self._clients)),
        )
        for pid, device, address in (
            (os.getpid(), "up0", HOST),
            (switch, "sw0", "10.77.0.2"),
            (switch, "sw1", "10.77.1.1"),
            (self._clients, "up1", SINK),
        ):
            _run(*_inside(pid, ("ip", "address", "add", f"{address}/24", "dev", device)))
            _run(*_inside(pid, ("ip", "link", "set", device, "up")))
        _run("ip", "route", "add", "default", "via", "10.77.0.2")
        _run(*self.among_clients(("ip", "route", "add", "default", "via", "10.77.1.1")))
        buffer_bytes = round(MBIT * 1e6 / 8 * BUFFER_S)
        rate = ("rate", f"{MBIT}mbit", "burst", "64kb", "limit", str(buffer_bytes))
        _run(*_inside(switch, ("tc", "qdisc", "add", "dev", "sw1", "root", "tbf", *rate)))
        sink = start("sink", self.among_clients(("iperf3", "-s", "-B", SINK)), self._home)
        self._processes.append(sink)

    def _namespace(self, name: str) -> int:
        """Start a process in a network namespace of its own; return its pid."""
        holder = start(name, ("unshare", "--net", "sleep", "infinity"), self._home)
        self._processes.append(holder)
        pid, deadline_ns = holder.popen.pid, time.monotonic_ns() + round(_WITHIN_S * NS_PER_SEC)
        while _namespace_of(pid) == _namespace_of(os.getpid()):
            holder.check()
            if time.monotonic_ns() > deadline_ns:
                raise DemoError("unshare makes no network namespace")
            time.sleep(0.01)
        return pid


def _namespace_of(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def _inside(pid: int, command: Sequence[str]) -> list[str]:
    return ["nsenter", f"--net=/proc/{pid}/ns/net", *command]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoError(f"{' '.join(command)}: {done.stderr.strip()}")
