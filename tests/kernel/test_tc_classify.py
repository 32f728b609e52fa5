# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Classification of packets: every kind of sender and receiver, by the counters of classes."""

from collections.abc import Callable, Iterator
import contextlib
from pathlib import Path
import socket
import time

import pytest

from controller.host.facts import find_cgroup_layout
from tests.kernel.netns import entered
from tests.kernel.shaped import (
    BEST_EFFORT,
    LIMITED,
    SENSITIVE,
    SYSTEM,
    Shaped,
    shaped_host,
)
from tests.kernel.wire import WIRE, WIRE6

pytestmark = pytest.mark.kernel

BYTES = 500


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shaped]:
    with shaped_host(tmp_path_factory.mktemp("state")) as made:
        yield made


@contextlib.contextmanager
def joined(cgroup: Path | None) -> Iterator[None]:
    """Move this process into a cgroup2 directory; a socket belongs to that of its creation."""
    if cgroup is None:
        yield
        return
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    (before,) = (line.removeprefix("0::") for line in lines if line.startswith("0::"))
    root = find_cgroup_layout().unified
    (cgroup / "cgroup.procs").write_text("0")
    try:
        yield
    finally:
        Path(f"{root}{before}", "cgroup.procs").write_text("0")


@contextlib.contextmanager
def made_in(
    namespace: str, cgroup: Path | None = None, *, kind: int = socket.SOCK_DGRAM, v6: bool = False
) -> Iterator[socket.socket]:
    """Make a socket in a network namespace and a cgroup, bound to a free port."""
    family = socket.AF_INET6 if v6 else socket.AF_INET
    with entered(namespace), joined(cgroup):
        made = socket.socket(family, kind)
    with made:
        made.settimeout(5)
        made.bind(("::" if v6 else "0.0.0.0", 0))
        yield made


def port(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


def counted(shaped: Shaped, work: Callable[[], object]) -> tuple[set[int], set[int]]:
    """Return the classes that counted the packets of *work*: egress, ingress."""
    before = shaped.counted()
    work()
    time.sleep(0.02)
    after = shaped.counted()
    # Packets that resolve neighbours are in the system class, and smaller than those of the test.
    grown = {key for key in before if after[key] - before[key] >= BYTES}
    return tuple({c for ingress, c in grown if ingress is way} for way in (False, True))  # type: ignore[return-value]


def exchange(client: socket.socket, server: socket.socket, address: str) -> None:
    """Send a datagram to *server* and one back."""
    client.sendto(bytes(BYTES), (address, port(server)))
    _, sender = server.recvfrom(2 * BYTES)
    server.sendto(bytes(BYTES), sender)
    client.recv(2 * BYTES)


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
    with made_in(namespace, where, v6=v6) as client, made_in(host.wire, v6=v6) as server:
        address = WIRE6 if v6 else WIRE
        exchange(client, server, address)  # the neighbours are resolved now
        found = counted(shaped, lambda: exchange(client, server, address))
    assert found == ({expected}, {expected})


def test_a_port_of_another_socket_has_another_class(shaped: Shaped) -> None:
    host = shaped.host
    with made_in(host.wire) as server:
        for cgroup, expected in (("batch", BEST_EFFORT), (None, SYSTEM), ("web", SENSITIVE)):
            where = None if cgroup is None else shaped.cgroups[cgroup]
            with entered(host.name), joined(where):
                client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with client:
                client.settimeout(5)
                client.bind(("0.0.0.0", 7777))
                found = counted(shaped, lambda: exchange(client, server, WIRE))  # noqa: B023
            assert found == ({expected}, {expected})


def test_datagrams_without_a_reply(shaped: Shaped) -> None:
    """To a socket of the host: by the socket. To a pod: from the second datagram on."""
    host = shaped.host
    with (
        made_in(host.wire) as sender,
        made_in(host.name, shaped.cgroups["batch"]) as here,
        made_in(host.pods["batch"]) as there,
    ):

        def send(receiver: socket.socket, address: str) -> None:
            sender.sendto(bytes(BYTES), (address, port(receiver)))
            receiver.recv(2 * BYTES)

        assert counted(shaped, lambda: send(here, "10.77.0.1")) == (set(), {BEST_EFFORT})
        assert counted(shaped, lambda: send(there, "10.78.1.2")) == (set(), {SYSTEM})
        assert counted(shaped, lambda: send(there, "10.78.1.2")) == (set(), {BEST_EFFORT})


def test_a_socket_nested_64_deep_belongs_to_its_workload(shaped: Shaped) -> None:
    host = shaped.host
    deep = shaped.cgroups["batch"] / "/".join(["d"] * 64)
    deep.mkdir(parents=True)
    with made_in(host.wire) as peer, made_in(host.name, deep) as here:

        def receive() -> None:
            peer.sendto(bytes(BYTES), ("10.77.0.1", port(here)))
            here.recv(2 * BYTES)

        assert counted(shaped, receive) == (set(), {BEST_EFFORT})
        found = counted(shaped, lambda: here.sendto(bytes(BYTES), (WIRE, port(peer))))
        assert found == ({BEST_EFFORT}, set())


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
        made_in(namespace, cgroup, kind=socket.SOCK_STREAM) as server,
        made_in(host.wire, kind=socket.SOCK_STREAM) as client,
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


def test_a_removed_cgroup_is_system_again(shaped: Shaped) -> None:
    host = shaped.host
    with made_in(host.name, shaped.cgroups["web"]) as client, made_in(host.wire) as server:
        exchange(client, server, WIRE)
        shaped.classify({"batch": BEST_EFFORT})
        try:
            found = counted(shaped, lambda: exchange(client, server, WIRE))
        finally:
            shaped.classify()
    assert found == ({SYSTEM}, {SYSTEM})
