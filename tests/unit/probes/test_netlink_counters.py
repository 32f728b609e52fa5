# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Netlink answers that are shorter than their form, or without counters."""

from collections.abc import Iterator
import struct

import pytest

from controller.host.rtnetlink import RouteSocket, attribute
from controller.probes import netns
from controller.probes.qdisc import ClassCounters, QdiscReader

IFINDEX, CLASS = 3, 0x10004
CLASS_ROW = struct.pack("=BxxxiIII", 0, IFINDEX, CLASS, 0, 0)
BASIC, QUEUE = struct.pack("=QI", 1500, 2), struct.pack("=IIIII", 1, 700, 3, 0, 0)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What every dump of the kernel has."""
    rows: list[bytes] = []

    def dump(_socket: RouteSocket, _kind: int, _body: bytes) -> Iterator[bytes]:
        return iter(rows)

    monkeypatch.setattr(RouteSocket, "dump", dump)
    return rows


def stats(*parts: tuple[int, bytes]) -> bytes:
    return attribute(7, b"".join(attribute(kind, value) for kind, value in parts))


def test_the_counters_of_a_class_are_read(answers: list[bytes]) -> None:
    answers.append(CLASS_ROW + stats((1, BASIC), (3, QUEUE)))
    reader = QdiscReader()
    assert reader.poll({IFINDEX: [CLASS]}) == {(IFINDEX, CLASS): ClassCounters(1500, 2, 3, 700)}
    reader.close()


@pytest.mark.parametrize(
    "row",
    [
        CLASS_ROW,
        CLASS_ROW + stats((1, BASIC)),
        CLASS_ROW + stats((1, BASIC[:6]), (3, QUEUE)),
        CLASS_ROW[:9],
    ],
    ids=["no statistics", "no queue", "short statistics", "short row"],
)
def test_a_class_without_counters_is_an_error_of_its_link(answers: list[bytes], row: bytes) -> None:
    answers.append(row)
    reader = QdiscReader()
    with pytest.raises(OSError, match="without counters"):
        reader.poll({IFINDEX: [CLASS]})
    reader.close()


LINK = struct.pack("=BxHiII", 0, 1, 2, 0, 0)


@pytest.mark.parametrize(
    "row", [LINK + attribute(23, bytes(8)), LINK[:5]], ids=["short statistics", "short row"]
)
def test_a_link_without_counters_leaves_the_traffic_of_its_namespace(
    answers: list[bytes], row: bytes
) -> None:
    answers.append(LINK + attribute(23, struct.pack("=QQQQ", 1, 2, 100, 200)))
    opened = RouteSocket()
    before = netns._count(opened)
    assert (before.rx_packets, before.tx_packets) == (1, 2)
    answers.append(row)
    with pytest.raises(OSError, match="Input/output"):
        netns._count(opened)
    opened.close()
