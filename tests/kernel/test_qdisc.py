# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Counters of classes of a real HTB qdisc, compared with the sent packets and with tc."""

from collections.abc import Iterator
import itertools
import os
import socket
import subprocess
import time

import pytest

from controller.probes.qdisc import QdiscReader
from tests.kernel.netns import entered

pytestmark = pytest.mark.kernel

PACKETS, SIZE = 20, 1000  # with the link header
DEFAULT, SHORT = 0x10004, 0x10005
_numbers = itertools.count()


@pytest.fixture
def namespace() -> Iterator[str]:
    """A namespace with a link with two slow classes; the second queues five packets at most."""
    name = f"swq{os.getpid()}-{next(_numbers)}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    rate = "rate 1mbit ceil 1mbit burst 2k cburst 2k"
    match = "match ip dport 7777 0xffff"
    try:
        for line in (
            "sysctl -qw net.ipv6.conf.default.disable_ipv6=1",
            "ip link add v0 type veth peer name v1",
            "ip link set v0 up",
            "ip link set v1 up",
            "ip addr add 10.99.0.1/24 dev v0",
            "ip neigh add 10.99.0.2 lladdr 02:00:00:00:00:02 dev v0",
            "tc qdisc add dev v0 root handle 1: htb default 4",
            "tc class add dev v0 parent 1: classid 1:1 htb rate 10mbit burst 64k cburst 64k",
            f"tc class add dev v0 parent 1:1 classid 1:4 htb {rate}",
            f"tc class add dev v0 parent 1:1 classid 1:5 htb {rate}",
            "tc qdisc add dev v0 parent 1:5 handle 50: pfifo limit 5",
            f"tc filter add dev v0 parent 1: protocol ip prio 1 u32 {match} flowid 1:5",
        ):
            command = ["nsenter", f"--net=/run/netns/{name}", *line.split()]
            subprocess.run(command, check=True, capture_output=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def send(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(PACKETS):
            sender.sendto(bytes(SIZE - 42), ("10.99.0.2", port))


def test_sent_bytes_backlog_and_drops(namespace: str) -> None:
    reader = QdiscReader(f"/run/netns/{namespace}")
    with entered(namespace):
        ifindex = socket.if_nametoindex("v0")
        send(8888)
        send(7777)
    # The reader's socket is in the namespace, and this thread has left it.
    wanted = {ifindex: (DEFAULT, SHORT, 0x10009), 9999: (DEFAULT,)}
    counters = reader.poll(wanted)
    assert set(counters) == {(ifindex, DEFAULT), (ifindex, SHORT)}
    waiting = counters[ifindex, DEFAULT]
    assert waiting.backlog_bytes > 0
    assert waiting.sent_bytes + waiting.backlog_bytes == PACKETS * SIZE
    deadline = time.monotonic() + 30
    while any(counters[key].backlog_bytes for key in counters):
        assert time.monotonic() < deadline
        time.sleep(0.02)
        counters = reader.poll(wanted)
    assert counters[ifindex, DEFAULT] == (PACKETS * SIZE, PACKETS, 0, 0)
    short = counters[ifindex, SHORT]
    assert short.drops > 0
    assert short.sent_packets + short.drops == PACKETS
    assert short.sent_bytes == short.sent_packets * SIZE
    command = ["nsenter", f"--net=/run/netns/{namespace}", "tc", "-s", "class", "show"]
    shown = subprocess.check_output([*command, "dev", "v0", "classid", "1:5"], text=True)
    assert "Sent {} bytes {} pkt (dropped {},".format(*short[:3]) in shown
    reader.close()


def test_an_invalid_namespace_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        QdiscReader("/run/netns/no-such")
    with pytest.raises(OSError, match="Invalid argument"):
        QdiscReader("/proc/self/status")


def test_a_removed_link_has_no_counters(namespace: str) -> None:
    reader = QdiscReader(f"/run/netns/{namespace}")
    with entered(namespace):
        ifindex = socket.if_nametoindex("v0")
    assert reader.poll({ifindex: (DEFAULT,)})
    subprocess.run(["ip", "-n", namespace, "link", "del", "v0"], check=True)
    assert reader.poll({ifindex: (DEFAULT,)}) == {}
    reader.close()
