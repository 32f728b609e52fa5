# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A host with an uplink and two pods behind masquerade, in network namespaces of a test.

``wire`` is the namespace at the other end of the uplink. A test enters the host's namespace while
it works on the host's links.
"""

from collections.abc import Sequence
import contextlib
import itertools
import json
from pathlib import Path
import re
import subprocess
from typing import Any, Self

from tests.kernel.netns import batch, inside, namespaces, run
from tests.support.temporary import Temporary
from tests.support.waiting import DEADLINE_S

__all__ = ("PODS", "WIRE", "WIRE6", "Flow", "Host", "dump")

_ports = itertools.count(5201)
WIRE, WIRE6 = "10.77.0.2", "fd77::2"
UPLINK = "up0"
PODS = ("web", "batch")
# Ends after the test, which ends it.
_ENDLESS_S = 3600


class Host(Temporary):
    """The namespaces; use as a context manager."""

    name: str
    wire: str

    def __init__(self) -> None:
        self.pods: dict[str, str] = {}
        self._stack = contextlib.ExitStack()

    def make(self) -> None:
        """Make the namespaces and link them."""
        made = self._stack.enter_context(namespaces(2 + len(PODS)))
        self.name, self.wire = made[:2]
        self.pods = dict(zip(PODS, made[2:], strict=True))
        wanted = [(UPLINK, "10.77.0", "fd77", self.wire)]
        for number, (pod, name) in enumerate(self.pods.items()):
            wanted.append((f"veth-{pod}", f"10.78.{number}", f"fd78:{number}", name))
        here = []
        for device, four, six, there in wanted:
            here.append(f"link add {device} type veth peer eth0 netns {there}")
            here += _addressed(device, f"{four}.1", f"{six}::1")
        batch(self.name, here)
        for device, four, six, there in wanted:
            lines = _addressed("eth0", f"{four}.2", f"{six}::2")
            nets = ("10.78.0.0/16", "fd78::/16") if device == UPLINK else ("default", "::/0")
            lines += [
                f"route add {nets[0]} via {four}.1",
                f"route add {nets[1]} via {six}::1",
            ]
            batch(there, lines)
        switches = ("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        self.inside(self.name, "sysctl", "-qw", *switches)
        # As on a node: connections of a pod leave with the node's address.
        self.inside(
            self.name,
            "nft",
            "add table inet nat; "
            "add chain inet nat out { type nat hook postrouting priority 100; }; "
            f"add rule inet nat out oifname {UPLINK} masquerade",
        )

    def close(self) -> None:
        """Remove the namespaces and all links in them."""
        self._stack.close()

    def ip(self, namespace: str, *words: str) -> str:
        """Run ip in a namespace."""
        return run("ip", "-n", namespace, *words)

    def inside(self, namespace: str, *command: str, text: str = "") -> str:
        """Run a command in a network namespace."""
        return run(*inside(namespace, command), text=text)

    def ifindex(self, device: str) -> int:
        """Return the ifindex of a device of the host."""
        (found,) = json.loads(self.ip(self.name, "-j", "link", "show", device))
        return int(found["ifindex"])


def _addressed(device: str, four: str, six: str) -> list[str]:
    return [
        f"addr add {four}/24 dev {device}",
        f"addr add {six}/64 dev {device} nodad",
        f"link set {device} up",
    ]


class Flow:
    """One iperf3 transfer between *namespace* and the wire, started at once; ``with`` ends it.

    :param seconds: duration, after one second that is not measured; ``None``: until its end.
    :param to_wire: the direction; if false, the wire sends.
    :param mbit: the sender's rate in Mbit/s; ``None``: unlimited.
    :param cgroup: cgroup2 directory in which the sockets are created.
    :param extra: further options of iperf3.
    """

    def __init__(
        self,
        host: Host,
        namespace: str,
        *,
        seconds: float | None = None,
        to_wire: bool = True,
        mbit: float | None = None,
        streams: int = 1,
        cgroup: Path | None = None,
        extra: Sequence[str] = (),
    ) -> None:
        port = str(next(_ports))
        server = inside(host.wire, ("iperf3", "-s", "-1", "-p", port, "--forceflush"))
        self._server = subprocess.Popen(server, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self._server.stdout is not None
        while b"listening" not in self._server.stdout.readline():
            pass
        join = f"echo $$ > {cgroup}/cgroup.procs; " if cgroup is not None else ""
        length_s = _ENDLESS_S if seconds is None else seconds
        client = ["iperf3", "-c", WIRE, "-p", port, "-J", "-t", str(length_s), "-O", "1"]
        client += ["-P", str(streams), "-l", "64K", *extra]
        client += [] if to_wire else ["-R"]
        client += [] if mbit is None else ["-b", f"{mbit / streams:.0f}M"]
        self._client = subprocess.Popen(
            inside(namespace, ("sh", "-c", join + 'exec "$@"', "-", *client)),
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def mbit(self) -> float:
        """Wait for the end and return the received Mbit/s, without the first second."""
        out, _ = self._client.communicate(timeout=DEADLINE_S)
        answer: dict[str, Any] = json.loads(out)
        assert "error" not in answer, answer["error"]
        return float(answer["end"]["sum_received"]["bits_per_second"]) / 1e6

    def end(self) -> None:
        """Kill both processes and wait for their end."""
        for process in (self._client, self._server):
            process.kill()
            process.communicate()


def dump(host: Host) -> list[str]:
    """Return all links and tc objects of the host as iproute2 shows them, without counters."""
    links = _links(host)
    requests = ["qdisc show"]
    for device in links:
        requests += [f"class show dev {device}", f"filter show dev {device}"]
        requests += [f"filter show dev {device} {hook}" for hook in ("ingress", "egress")]
    try:
        answers = host.inside(host.name, "tc", "-b", "-", text="\n".join(requests))
    except AssertionError:
        if _links(host) == links:
            raise
        return dump(host)  # a device was removed in between
    answers = re.sub(r"direct_packets_stat \d+", "", answers)  # the only counter in the output
    return [*(f"{device} {state}" for device, state in links.items()), *answers.splitlines()]


def _links(host: Host) -> dict[str, str]:
    """Return whether each link is to be up; the kernel needs a while until it is."""
    found = json.loads(host.ip(host.name, "-j", "link"))
    return {each["ifname"]: "up" if "UP" in each["flags"] else "down" for each in found}
