# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Who waits on a shaped link, and the rates of best-effort work on a link of 200 Mbit/s.

Packets wait in a class until the link, a ceiling or a limit lets them go. That order holds at any
speed of the machine. Rates do not: a token bucket holds a few milliseconds, and what exceeds it is
lost while the hypervisor holds the CPU on which packets are due. Shares: ``test_tc_soak``.
"""

from collections.abc import Iterator
import contextlib
from pathlib import Path
import socket
import time

import pytest

from actuators.tc.shape import Shape, Tree, encode
from controller.core.model import Knob
from controller.probes.qdisc import ClassCounters
from tests.kernel.links import LINK_MBIT, MBIT, SHAPE, change
from tests.kernel.shaped import BEST_EFFORT, LIMITED, SENSITIVE, Shaped, shaped_host
from tests.kernel.sockets import BYTES, FRAME_BYTES, exchange, port, socket_in
from tests.kernel.steal import Steal
from tests.kernel.wire import WIRE, Flow
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

UDP = ("-u", "-l", "1400")
# More than a class sends at once, which is 64 KiB, and less than a socket holds.
MANY = 150
# In bytes per second: less than a packet, so that many wait for longer than any test looks.
LEAST = 1000
SLOW = Shape(8 * LEAST, (LEAST, 8 * LEAST), (6 * LEAST, 8 * LEAST), (LEAST, 8 * LEAST), (LEAST,))


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shaped]:
    with shaped_host(tmp_path_factory.mktemp("state")) as made:
        yield made


class Sender:
    """Datagrams of one class, in one direction between the host and the wire."""

    def __init__(
        self,
        shaped: Shaped,
        number: int,
        client: socket.socket,
        server: socket.socket,
        to_wire: bool,
    ) -> None:
        # The neighbours and the class of the flow are known now.
        there = exchange(client, server, WIRE)
        self._from, self._to = (client, (WIRE, port(server))) if to_wire else (server, there)
        self._shaped, self._key = shaped, (not to_wire, number)
        self._sent, self._before = 0, self._counters()

    def send(self, count: int) -> None:
        """Send datagrams and wait until the class has them."""
        for _ in range(count):
            self._from.sendto(bytes(BYTES), self._to)
        self._sent += count
        eventually("every packet in the class", self._has_all)

    def _has_all(self) -> bool:
        now = self._counters()
        taken = now.sent_bytes + now.backlog_bytes - self._before.sent_bytes
        return taken >= self._sent * FRAME_BYTES

    @property
    def waiting(self) -> bool:
        """Whether packets of the class wait."""
        return self._counters().backlog_bytes > 0

    def drain(self) -> None:
        """Wait until all packets have left, and check that none was dropped."""
        eventually("an empty queue", lambda: not self.waiting)
        now = self._counters()
        # Reports of multicast groups by the kernel itself may be among them.
        assert now.sent_packets - self._before.sent_packets >= self._sent
        assert now.drops == self._before.drops

    def _counters(self) -> ClassCounters:
        return self._shaped.counted()[self._key]


@contextlib.contextmanager
def both_pods(shaped: Shaped, to_wire: bool) -> Iterator[tuple[Sender, Sender]]:
    """Make a sender for the pod of the service and one for the best-effort pod."""
    host = shaped.host
    with (
        socket_in(host.wire) as server,
        socket_in(host.pods["web"]) as web,
        socket_in(host.pods["batch"]) as batch,
    ):
        service = Sender(shaped, SENSITIVE, web, server, to_wire)
        yield service, Sender(shaped, BEST_EFFORT, batch, server, to_wire)


def set_ceiling(shaped: Shaped, egress: int, ingress: int) -> None:
    value = f"{egress} {ingress}"
    assert change(shaped.executor, shaped.link, Knob.TC_CEILING, value).applied == value


@pytest.mark.thorough
@pytest.mark.parametrize("to_wire", [True, False])
def test_only_best_effort_waits_for_its_ceiling(shaped: Shaped, to_wire: bool) -> None:
    with both_pods(shaped, to_wire) as (service, batch):
        # What the class may always send would be a debt of its tier under a low ceiling.
        batch.send(MANY)
        batch.drain()
        set_ceiling(shaped, LEAST, LEAST)
        batch.send(MANY)
        service.send(MANY)
        service.drain()
        assert batch.waiting
        set_ceiling(shaped, LINK_MBIT * MBIT, LINK_MBIT * MBIT)
        batch.drain()


@pytest.mark.thorough
@pytest.mark.parametrize("to_wire", [True, False])
def test_the_service_goes_before_best_effort(tmp_path: Path, to_wire: bool) -> None:
    """While both wait, best-effort work gets its guaranteed eighth, and the service the rest."""
    keys = [(not to_wire, number) for number in (SENSITIVE, BEST_EFFORT)]
    with (
        shaped_host(tmp_path, encode(Tree(SLOW, SLOW))) as shaped,
        both_pods(shaped, to_wire) as (service, batch),
    ):
        batch.send(MANY)
        service.send(MANY)
        before = shaped.counted()

        def twenty_later() -> list[int]:
            now = shaped.counted()
            moved = [now[key].sent_packets - before[key].sent_packets for key in keys]
            return moved if moved[0] >= 20 else []

        of_service, of_batch = eventually("packets of the service", twenty_later)
        assert service.waiting and batch.waiting
        assert 0 < of_batch <= of_service / 3


@pytest.mark.thorough
def test_only_the_limited_work_waits_for_its_limit(tmp_path: Path) -> None:
    limited, unlimited = Tree(SHAPE._replace(limits=(LEAST,)), SHAPE), Tree(SHAPE, SHAPE)
    with (
        shaped_host(tmp_path, encode(limited)) as shaped,
        socket_in(shaped.host.wire) as server,
        socket_in(shaped.host.name, shaped.cgroups["limited"]) as one,
        socket_in(shaped.host.name, shaped.cgroups["batch"]) as other,
    ):
        slow = Sender(shaped, LIMITED, one, server, to_wire=True)
        rest = Sender(shaped, BEST_EFFORT, other, server, to_wire=True)
        slow.send(MANY // 2)
        rest.send(MANY // 2)
        rest.drain()
        assert slow.waiting
        value = encode(unlimited)
        assert change(shaped.executor, shaped.link, Knob.TC_TREE, value).applied == value
        slow.drain()


def assert_near(mbit: float, wanted_mbit: float, rel: float, left_ratio: float) -> None:
    assert (1 - rel) * left_ratio * wanted_mbit <= mbit <= (1 + rel) * wanted_mbit


@pytest.mark.timed
def test_a_changed_ceiling_holds_within_a_second(shaped: Shaped) -> None:
    host, batch = shaped.host, shaped.host.pods["batch"]
    measured = []
    with (
        Flow(host, batch, to_wire=True, mbit=150, extra=UDP),
        Flow(host, batch, to_wire=False, mbit=150, extra=UDP),
    ):
        time.sleep(0.5)
        # A ceiling below the guaranteed rate of best-effort work: the ceiling counts.
        for egress, ingress in ((180, 190), (40, 20), (5, 8), (80, 100)):
            set_ceiling(shaped, egress * MBIT, ingress * MBIT)
            time.sleep(0.3)
            steal = Steal()
            rates = shaped.rates(0.4)
            both = (rates[False, BEST_EFFORT], rates[True, BEST_EFFORT])
            measured.append((*both, steal.left_ratio()))
        set_ceiling(shaped, LINK_MBIT * MBIT, LINK_MBIT * MBIT)
    print(measured)
    *high, left = measured[0]
    assert min(high) > 120 * left
    for (*found, left), wanted, rel in zip(
        measured[1:], ((40, 20), (5, 8), (80, 100)), (0.1, 0.15, 0.1), strict=True
    ):
        for rate, ceiling in zip(found, wanted, strict=True):
            assert_near(rate, ceiling, rel, left)


@pytest.mark.timed
def test_a_limit_below_the_tier(shaped: Shaped) -> None:
    """Best-effort work with a limit of its own gets that, and its tier gets the rest."""
    host, cgroups = shaped.host, shaped.cgroups
    with (
        Flow(host, host.name, mbit=150, cgroup=cgroups["limited"], extra=UDP),
        Flow(host, host.name, mbit=150, cgroup=cgroups["batch"], extra=UDP),
    ):
        time.sleep(0.7)
        steal = Steal()
        rates = shaped.rates(1.0)
        left = steal.left_ratio()
    print({number: round(rates[False, number], 1) for number in (BEST_EFFORT, LIMITED)})
    assert_near(rates[False, LIMITED], 30, 0.1, left)
    assert rates[False, BEST_EFFORT] > 120 * left
