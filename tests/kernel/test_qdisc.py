# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Counters of classes of a real HTB qdisc, compared with the sent packets and with tc."""

from collections.abc import Iterator
import socket

import pytest

from controller.probes.qdisc import QdiscReader
from tests.kernel.netns import entered, inside, linked_pair, run
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]

PACKETS, SIZE = 20, 1000  # with the link header
DEFAULT, SHORT = 0x10004, 0x10005
# A packet a second: most of them wait until the test has seen them.
SLOW = "rate 8kbit ceil 8kbit burst 2k cburst 2k"
FAST = "rate 8mbit ceil 8mbit burst 64k cburst 64k"


def tc(namespace: str, *lines: str) -> None:
    for line in lines:
        run(*inside(namespace, ("tc", *line.split())))


@pytest.fixture
def namespace() -> Iterator[str]:
    """A namespace with a link with two slow classes; the second queues five packets at most."""
    match = "match ip dport 7777 0xffff"
    with linked_pair() as (name, _):
        tc(
            name,
            "qdisc add dev eth0 root handle 1: htb default 4",
            "class add dev eth0 parent 1: classid 1:1 htb rate 10mbit burst 64k cburst 64k",
            f"class add dev eth0 parent 1:1 classid 1:4 htb {SLOW}",
            f"class add dev eth0 parent 1:1 classid 1:5 htb {SLOW}",
            "qdisc add dev eth0 parent 1:5 handle 50: pfifo limit 5",
            f"filter add dev eth0 parent 1: protocol ip prio 1 u32 {match} flowid 1:5",
        )
        yield name


def send(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(PACKETS):
            sender.sendto(bytes(SIZE - 42), ("10.98.0.2", port))


def test_sent_bytes_backlog_and_drops(namespace: str) -> None:
    reader = QdiscReader(f"/run/netns/{namespace}")
    with entered(namespace):
        ifindex = socket.if_nametoindex("eth0")
        send(8888)
        send(7777)
    # The reader's socket is in the namespace, and this thread has left it.
    wanted = {ifindex: (DEFAULT, SHORT, 0x10009), 9999: (DEFAULT,)}
    counters = reader.poll(wanted)
    assert set(counters) == {(ifindex, DEFAULT), (ifindex, SHORT)}
    waiting = counters[ifindex, DEFAULT]
    assert waiting.backlog_bytes > 0
    assert waiting.sent_bytes + waiting.backlog_bytes == PACKETS * SIZE
    tc(namespace, *(f"class change dev eth0 parent 1:1 classid 1:{n} htb {FAST}" for n in (4, 5)))
    eventually(
        "empty queues",
        lambda: not any(each.backlog_bytes for each in reader.poll(wanted).values()),
    )
    counters = reader.poll(wanted)
    assert counters[ifindex, DEFAULT] == (PACKETS * SIZE, PACKETS, 0, 0)
    short = counters[ifindex, SHORT]
    assert short.drops > 0
    assert short.sent_packets + short.drops == PACKETS
    assert short.sent_bytes == short.sent_packets * SIZE
    shown = run(*inside(namespace, ("tc", "-s", "class", "show", "dev", "eth0", "classid", "1:5")))
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
        ifindex = socket.if_nametoindex("eth0")
    assert reader.poll({ifindex: (DEFAULT,)})
    run("ip", "-n", namespace, "link", "del", "eth0")
    assert reader.poll({ifindex: (DEFAULT,)}) == {}
    reader.close()
