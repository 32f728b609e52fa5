# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Classification of packets: every kind of sender and receiver, by the counters of classes."""

from collections.abc import Callable, Iterator
from pathlib import Path
import socket

import pytest

from controller.core.model import Knob
from tests.kernel.links import MBIT, change
from tests.kernel.shaped import (
    BEST_EFFORT,
    LIMITED,
    SENSITIVE,
    SYSTEM,
    Shaped,
    shaped_host,
)
from tests.kernel.sockets import BYTES, exchange, port, socket_in
from tests.kernel.wire import WIRE, WIRE6

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shaped]:
    with shaped_host(tmp_path_factory.mktemp("state")) as made:
        yield made


def counted(shaped: Shaped, work: Callable[[], object]) -> tuple[set[int], set[int]]:
    """Return the classes that counted the packets of *work*: egress, ingress.

    A packet is counted before it is received, so *work* has to receive what it sends. What the
    kernel sends by itself is less: requests for neighbours, reports of multicast groups.
    """
    before = shaped.counted()
    work()
    after = shaped.counted()
    grown = {key for key in before if after[key].sent_bytes - before[key].sent_bytes >= BYTES}
    return {c for ingress, c in grown if not ingress}, {c for ingress, c in grown if ingress}


def exchanged(
    shaped: Shaped, client: socket.socket, server: socket.socket, address: str = WIRE
) -> tuple[set[int], set[int]]:
    """Return the classes of a datagram to *server* and of one back."""
    return counted(shaped, lambda: exchange(client, server, address))


def test_a_link_is_shaped_and_restored(tmp_path: Path) -> None:
    """Tree, ceiling and filters; packets of every tier in their classes; all of it undone."""
    with shaped_host(tmp_path) as shaped:
        host = shaped.host
        value = f"{50 * MBIT} {40 * MBIT}"
        assert change(shaped.executor, shaped.link, Knob.TC_CEILING, value).applied == value
        with (
            socket_in(host.wire) as server,
            socket_in(host.pods["web"]) as web,
            socket_in(host.pods["batch"]) as batch,
            socket_in(host.name, shaped.cgroups["limited"]) as limited,
            socket_in(host.name) as system,
        ):
            assert exchanged(shaped, web, server) == ({SENSITIVE}, {SENSITIVE})
            assert exchanged(shaped, batch, server) == ({BEST_EFFORT}, {BEST_EFFORT})
            assert exchanged(shaped, limited, server) == ({LIMITED}, {LIMITED})
            assert exchanged(shaped, system, server) == ({SYSTEM}, {SYSTEM})


@pytest.mark.thorough
@pytest.mark.parametrize("v6", [False, True])
@pytest.mark.parametrize(
    ("place", "cgroup", "expected"),
    [
        ("host", "web", SENSITIVE),
        ("host", "batch", BEST_EFFORT),
        ("host", "limited", LIMITED),
        ("host", None, SYSTEM),
        ("web", None, SENSITIVE),
        ("batch", None, BEST_EFFORT),
        # The class of the socket's cgroup goes before the class of the pod.
        ("batch", "limited", LIMITED),
    ],
)
def test_datagrams_and_their_replies(
    shaped: Shaped, place: str, cgroup: str | None, expected: int, v6: bool
) -> None:
    host = shaped.host
    namespace = host.name if place == "host" else host.pods[place]
    where = None if cgroup is None else shaped.cgroups[cgroup]
    with socket_in(namespace, where, v6=v6) as client, socket_in(host.wire, v6=v6) as server:
        found = exchanged(shaped, client, server, WIRE6 if v6 else WIRE)
    assert found == ({expected}, {expected})


@pytest.mark.thorough
def test_a_port_of_another_socket_has_another_class(shaped: Shaped) -> None:
    host = shaped.host
    with socket_in(host.wire) as server:
        for cgroup, expected in (("batch", BEST_EFFORT), (None, SYSTEM), ("web", SENSITIVE)):
            where = None if cgroup is None else shaped.cgroups[cgroup]
            with socket_in(host.name, where, port=7777) as client:
                assert exchanged(shaped, client, server) == ({expected}, {expected})


@pytest.mark.thorough
def test_datagrams_without_a_reply(shaped: Shaped) -> None:
    """To a socket of the host: by the socket. To a pod: from the second datagram on."""
    host = shaped.host
    with (
        socket_in(host.wire) as sender,
        socket_in(host.name, shaped.cgroups["batch"]) as here,
        socket_in(host.pods["batch"]) as there,
    ):

        def send(receiver: socket.socket, address: str) -> None:
            sender.sendto(bytes(BYTES), (address, port(receiver)))
            receiver.recv(2 * BYTES)

        assert counted(shaped, lambda: send(here, "10.77.0.1")) == (set(), {BEST_EFFORT})
        assert counted(shaped, lambda: send(there, "10.78.1.2")) == (set(), {SYSTEM})
        assert counted(shaped, lambda: send(there, "10.78.1.2")) == (set(), {BEST_EFFORT})


@pytest.mark.thorough
def test_a_socket_nested_64_deep_belongs_to_its_workload(shaped: Shaped) -> None:
    host = shaped.host
    deep = shaped.cgroups["batch"] / "/".join(["d"] * 64)
    deep.mkdir(parents=True)
    with socket_in(host.wire) as peer, socket_in(host.name, deep) as here:

        def receive() -> None:
            peer.sendto(bytes(BYTES), ("10.77.0.1", port(here)))
            here.recv(2 * BYTES)

        def answer() -> None:
            here.sendto(bytes(BYTES), (WIRE, port(peer)))
            peer.recv(2 * BYTES)

        assert counted(shaped, receive) == (set(), {BEST_EFFORT})
        assert counted(shaped, answer) == ({BEST_EFFORT}, set())


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["host", "batch"])
def test_connections_from_outside_are_learned_from_replies(shaped: Shaped, place: str) -> None:
    """Of a connection from outside only the first packet is not classified."""
    host = shaped.host
    namespace, cgroup, address = (
        (host.name, shaped.cgroups["batch"], "10.77.0.1")
        if place == "host"
        else (host.pods["batch"], None, "10.78.1.2")
    )
    with (
        socket_in(namespace, cgroup, kind=socket.SOCK_STREAM) as server,
        socket_in(host.wire, kind=socket.SOCK_STREAM) as client,
    ):
        server.listen()

        def talk() -> None:
            client.connect((address, port(server)))
            connection, _ = server.accept()
            with connection:
                for one, other in ((client, connection), (connection, client)):
                    one.sendall(bytes(20 * BYTES))
                    left = 20 * BYTES
                    while left:
                        left -= len(other.recv(left))

        assert counted(shaped, talk) == ({BEST_EFFORT}, {BEST_EFFORT})


@pytest.mark.thorough
def test_a_removed_cgroup_is_system_again(shaped: Shaped) -> None:
    host = shaped.host
    with socket_in(host.name, shaped.cgroups["web"]) as client, socket_in(host.wire) as server:
        assert exchanged(shaped, client, server) == ({SENSITIVE}, {SENSITIVE})
        shaped.classify({"batch": BEST_EFFORT})
        try:
            found = exchanged(shaped, client, server)
        finally:
            shaped.classify()
    assert found == ({SYSTEM}, {SYSTEM})
