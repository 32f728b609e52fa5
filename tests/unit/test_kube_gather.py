# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Events of a watch as the API server sends them: each a chunk, some soon after another."""

from collections.abc import Iterator
import json
from pathlib import Path
import socket
import threading
from typing import Any

import pytest

from controller.kube.client.api import Api, Limits
from controller.kube.client.errors import ApiUnreachable
from tests.pod_server import PodServer

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PATIENT = Limits(gather_s=60)


def chunk(event: dict[str, Any]) -> bytes:
    text = json.dumps(event).encode() + b"\n"
    return b"%x\r\n%b\r\n" % (len(text), text)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PodServer]:
    with PodServer(tmp_path) as server:
        yield server


def test_events_that_follow_another_are_taken_together_unless_they_are_many(
    server: PodServer,
) -> None:
    taken = [threading.Event() for _ in range(5)]
    alone = []

    def answer(connection: socket.socket) -> None:
        first, second, third, last = (chunk({"number": number}) for number in range(1, 5))
        connection.sendall(HEAD + first[:9])
        connection.sendall(first[9:])
        assert taken[1].wait(10)
        connection.sendall(second)
        alone.append(taken[2].wait(0.3))
        many = chunk({"number": 0, "text": "x" * 100_000})
        connection.sendall(many + third + last[:9])
        assert taken[3].wait(10)
        connection.sendall(last[9:])  # what has begun is waited for, however little it is
        assert taken[4].wait(10)
        connection.sendall(b"0\r\n\r\n")

    server.script = [answer]
    order = []
    with Api(server.kubeconfig, PATIENT).watch("/x", {}) as events:
        for event in events:
            order.append(event["number"])
            taken[event["number"]].set()
    assert order == [1, 2, 0, 3, 4]
    assert alone == [False]


def test_a_watch_that_gathers_can_be_cut_off(server: PodServer) -> None:
    came = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(HEAD + chunk({"number": 1}))
        server.hang(connection)

    def ask() -> None:
        with api.watch("/x", {}) as events, pytest.raises(ApiUnreachable, match="by ourselves"):
            for _ in events:
                came.set()

    server.script = [answer]
    api = Api(server.kubeconfig, PATIENT)
    thread = threading.Thread(target=ask)
    thread.start()
    assert came.wait(10)
    api.end(thread)
    assert not thread.is_alive()
