# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The schedule of requests, and latencies of a service that stalls."""

from functools import partial
import os
from pathlib import Path
import selectors
import socket
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from controller.core.units import NS_PER_SEC
from tests.compare import client
from tests.compare.services import SERVICES

STALL_S = 0.3


def test_segments_follow_each_other() -> None:
    times = client.intended_ns(1000, [(1.0, 2.0), (0.5, 4.0)])
    assert (times - 1000).tolist() == [0, 500_000_000, 1_000_000_000, 1_250_000_000]


def test_a_shape_is_repeated_to_the_length_of_the_block() -> None:
    segments = SERVICES["nginx"].segments("bursty", 5.0)
    assert [seconds for seconds, _ in segments] == [1.5, 0.5, 1.5, 0.5, 1.0]
    assert sum(seconds * rate for seconds, rate in segments) == 2000.0 * 4.5


def test_a_request_has_each_number_once_with_the_same_length() -> None:
    assert client.variants("GET /page") == [b"GET /page"]
    found = client.variants("GET /file-{12} HTTP")
    assert found[0] == b"GET /file-00 HTTP" and found[11] == b"GET /file-11 HTTP"
    assert len(set(found)) == 12 and len({len(each) for each in found}) == 1


class Clock:
    """Time that passes while the client sleeps, and for no other reason."""

    def __init__(self) -> None:
        self._now_ns = 0

    def monotonic_ns(self) -> int:
        return self._now_ns

    def sleep(self, seconds: float) -> None:
        self._now_ns += round(seconds * NS_PER_SEC) + 1
        time.sleep(0)  # the turn of the server


class Connection(client._Connection):
    """A connection that the test closes: the program leaves that to its end."""

    def __init__(self, made: list["Connection"], address: tuple[str, int], request: bytes) -> None:
        super().__init__(address, request)
        made.append(self)


def serve(listener: socket.socket, clock: Clock) -> None:
    """Answer one connection; the fifth answer comes late, and so do those that wait behind it."""
    connection, _ = listener.accept()
    answered = 0
    with connection:
        while answered < 1 + 10:  # the first one tells the size
            data = connection.recv(4096)
            for _ in range(data.count(b"\n")):
                answered += 1
                late_ns = clock.monotonic_ns() + STALL_S * NS_PER_SEC
                while answered == 5 and clock.monotonic_ns() < late_ns:
                    time.sleep(0)
                connection.sendall(b"0123456789")


def test_latency_counts_from_the_intended_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, output, start_ns = Clock(), tmp_path / "latencies", NS_PER_SEC // 5
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener, clock))
        server.start()
        host, port = listener.getsockname()
        command = ["client", host, str(port), "1", str(output), str(start_ns), r"get\n", "0.5:20"]
        monkeypatch.setattr(sys, "argv", command)
        monkeypatch.setattr(client, "time", clock)
        monkeypatch.setattr(client, "PATIENCE_S", 1e6)
        # What a program of its own does to itself.
        monkeypatch.setattr(client, "die_with_parent", lambda: None)
        monkeypatch.setattr(client, "gc", SimpleNamespace(disable=lambda: None))
        monkeypatch.setattr(os, "sched_setscheduler", lambda *_: None)
        made: list[Connection] = []
        monkeypatch.setattr(client, "_Connection", partial(Connection, made))
        client.main()
        server.join()
        for each in made:
            each.socket.close()
    found = np.frombuffer(output.read_bytes(), "<i8").reshape(-1, 2)
    assert (found[:, 0] - start_ns).tolist() == [50_000_000 * number for number in range(10)]
    # The first answer told the size, so the fourth request of the schedule stalls. Its successors
    # were sent at their times and have waited since then.
    late_ns = found[3:7, 1] - (STALL_S * NS_PER_SEC - 50e6 * np.arange(4))
    assert (late_ns > 0).all()


def test_a_lasting_connection_is_opened_again_and_forgets_what_was_lost() -> None:
    with (
        selectors.DefaultSelector() as selector,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        connection = client._Lasting(listener.getsockname(), b"get\n", selector)
        first, _ = listener.accept()
        first.sendall(b"0123456789")
        assert connection.first_size() == 10
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.send(b"get\n", 0)
        connection.received = 3
        first.close()
        assert [key.data for key, _ in selector.select()] == [connection]
        assert connection.receive() == 0
        assert not connection.pending and connection.received == 0
        connection.send(b"get\n", 1)
        second, _ = listener.accept()
        with second:
            assert second.recv(100) == b"get\n"
            assert list(connection.pending) == [1]
            second.sendall(b"0123456789")
            assert [key.data for key, _ in selector.select()] == [connection]
            assert connection.receive() == 10
        connection.socket.close()


def test_a_lasting_connection_loses_requests_while_nobody_listens() -> None:
    with selectors.DefaultSelector() as selector:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            connection = client._Lasting(listener.getsockname(), b"get\n", selector)
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            listener.accept()[0].close()
        assert connection.receive() == 0
        for number in range(3):
            connection.send(b"get\n", number)
        assert not connection.pending
