# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A host with an uplink and two pods behind masquerade, in network namespaces of a test.

``wire`` is the other end of the uplink. The test itself enters the host's namespace for as long
as it works on the host's links.
"""

from collections.abc import Iterator, Sequence
import contextlib
import ctypes
import itertools
import json
import os
from pathlib import Path
import re
import subprocess
from typing import Any

__all__ = ("PODS", "WIRE", "WIRE6", "Flow", "Host", "dump", "entered")

_CLONE_NEWNET = 0x40000000
_numbers = itertools.count()
_ports = itertools.count(5201)
WIRE, WIRE6 = "10.77.0.2", "fd77::2"
UPLINK = "up0"
PODS = ("web", "batch")


def run(*command: str, text: str = "") -> str:
    """Run a command with *text* as its input and return what it says."""
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


@contextlib.contextmanager
def entered(namespace: str) -> Iterator[None]:
    """Be in a network namespace with this thread."""
    with open("/proc/thread-self/ns/net") as before, open(f"/run/netns/{namespace}") as there:
        _setns(there.fileno())
        try:
            yield
        finally:
            _setns(before.fileno())


def _setns(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Host:
    """The namespaces; use as a context manager."""

    def __init__(self) -> None:
        prefix = f"swt{os.getpid()}-{next(_numbers)}"
        self.name, self.wire = f"{prefix}-host", f"{prefix}-wire"
        self.pods = {pod: f"{prefix}-{pod}" for pod in PODS}

    def __enter__(self) -> "Host":
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for name in (*self.pods.values(), self.wire, self.name):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

    def ip(self, namespace: str, *words: str) -> str:
        """Run ip in a namespace."""
        return run("ip", "-n", namespace, *words)

    def inside(self, namespace: str, *command: str, text: str = "") -> str:
        """Run a command in a network namespace."""
        return run("nsenter", f"--net=/run/netns/{namespace}", *command, text=text)

    def ifindex(self, device: str) -> int:
        """The number of a device of the host."""
        (found,) = json.loads(self.ip(self.name, "-j", "link", "show", device))
        return int(found["ifindex"])

    def _make(self) -> None:
        for name in (self.name, self.wire, *self.pods.values()):
            run("ip", "netns", "add", name)
            self.ip(name, "link", "set", "lo", "up")
        for name in ("all", "default"):  # nothing but what the test sends
            off = f"net.ipv6.conf.{name}.accept_dad=0"
            for namespace in (self.name, self.wire, *self.pods.values()):
                self.inside(namespace, "sysctl", "-qw", off)
        self._veth(UPLINK, 77, 0, self.wire, "w0")
        self.ip(self.wire, "route", "add", "10.78.0.0/16", "via", "10.77.0.1")
        self.ip(self.wire, "route", "add", "fd78::/16", "via", "fd77::1")
        for number, (pod, name) in enumerate(self.pods.items()):
            self._veth(f"veth-{pod}", 78, number, name, "eth0")
            self.ip(name, "route", "add", "default", "via", f"10.78.{number}.1")
            self.ip(name, "route", "add", "default", "via", f"fd78:{number}::1")
        self.inside(self.name, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self.inside(self.name, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
        # As on a node: what a pod begins leaves with the node's address.
        self.inside(
            self.name,
            "nft",
            "add table inet nat; "
            "add chain inet nat out { type nat hook postrouting priority 100; }; "
            f"add rule inet nat out oifname {UPLINK} masquerade",
        )

    def _veth(self, device: str, net: int, subnet: int, there: str, peer: str) -> None:
        self.ip(self.name, "link", "add", device, "type", "veth", "peer", peer, "netns", there)
        for namespace, name, own in ((self.name, device, 1), (there, peer, 2)):
            self.ip(namespace, "addr", "add", f"10.{net}.{subnet}.{own}/24", "dev", name)
            six = f"fd{net}:{subnet}::{own}" if net == 78 else f"fd{net}::{own}"
            self.ip(namespace, "addr", "add", f"{six}/64", "dev", name, "nodad")
            self.ip(namespace, "link", "set", name, "up")


class Flow:
    """One iperf3 transfer between *namespace* and the wire, started at once.

    :param cgroup: cgroup2 directory in which the sockets are made.
    :param to_wire: direction; otherwise the wire sends.
    :param mbit: what the sender offers; ``None``: all it can.
    """

    def __init__(
        self,
        host: Host,
        namespace: str,
        *,
        seconds: float,
        to_wire: bool = True,
        mbit: int | None = None,
        streams: int = 1,
        cgroup: Path | None = None,
        extra: Sequence[str] = (),
    ) -> None:
        port = str(next(_ports))
        server = ["nsenter", f"--net=/run/netns/{host.wire}", "iperf3", "-s", "-1", "-p", port]
        self._server = subprocess.Popen(
            [*server, "--forceflush"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert self._server.stdout is not None
        while b"listening" not in self._server.stdout.readline():
            pass
        join = f"echo $$ > {cgroup}/cgroup.procs; " if cgroup is not None else ""
        client = ["iperf3", "-c", WIRE, "-p", port, "-J", "-t", str(seconds), "-O", "1"]
        client += ["-P", str(streams), "-l", "64K", *extra]
        client += [] if to_wire else ["-R"]
        client += [] if mbit is None else ["-b", f"{mbit / streams:.0f}M"]
        self._client = subprocess.Popen(
            [
                *("nsenter", f"--net=/run/netns/{namespace}", "sh", "-c", join + 'exec "$@"', "-"),
                *client,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )

    def mbit(self) -> float:
        """Wait for its end and return what arrived per second, without the first second."""
        out, _ = self._client.communicate(timeout=60)
        self.end()
        answer: dict[str, Any] = json.loads(out)
        assert "error" not in answer, answer["error"]
        return float(answer["end"]["sum_received"]["bits_per_second"]) / 1e6

    def end(self) -> None:
        """End it, whatever it does."""
        for process in (self._client, self._server):
            process.kill()
            process.communicate()


def dump(host: Host) -> list[str]:
    """All links and tc objects of the host as iproute2 shows them, without counters."""
    links = host.ip(host.name, "-br", "link").splitlines()
    devices = [line.split()[0].split("@")[0] for line in links]
    asked = ["qdisc show"]
    for device in devices:
        asked += [f"class show dev {device}", f"filter show dev {device}"]
        asked += [f"filter show dev {device} {hook}" for hook in ("ingress", "egress")]
    answers = host.inside(host.name, "tc", "-b", "-", text="\n".join(asked))
    answers = re.sub(r"direct_packets_stat \d+", "", answers)  # the one counter among them
    return [*(" ".join(line.split()[:2]) for line in links), *answers.splitlines()]
