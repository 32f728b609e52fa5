# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A connection that stays for the next request, and one that the server ended meanwhile."""

from collections.abc import Callable, Iterator
import socket

import pytest

from controller.config.sections.service_sources import Endpoint, MetricLine, ServiceSource
from controller.core.units import NS_PER_SEC
from controller.probes.service_level.connection import Client
from controller.probes.service_level.fetch import FetchLoop
from controller.probes.service_level.ledger import SourceError
from controller.probes.service_level.poll import fetch_figure, together_s
from tests.support.http.raw_server import CHUNKED, RawHttpServer, ok
from tests.unit.probes.service_level.collecting import LONG_NS


def page(number: int) -> bytes:
    return ok(b"load %d\n" % number)


def heads(connection: socket.socket) -> Iterator[str]:
    """Yield the further requests of *connection*."""
    head = b""
    while part := connection.recv(65536):
        head += part
        if head.endswith(b"\r\n\r\n"):
            yield head.decode()
            head = b""


class Pod:
    """A page that is asked again and again over one client."""

    def __init__(self, answer: bytes | Callable[[socket.socket], None]) -> None:
        self.server = RawHttpServer(answer)
        self._loop, self._client = FetchLoop(), Client()

    def ask(self) -> float:
        endpoint = Endpoint(url=self.server.url, token_file=None, header_files=(), ca_file=None)
        source = ServiceSource(
            service="web",
            source=MetricLine(endpoint=endpoint, metric="load", labels=()),
            unit_ns=NS_PER_SEC,
            every_ns=NS_PER_SEC,
            timeout_ns=LONG_NS,
            max_age_ns=LONG_NS,
        )
        return self._loop.run_until_complete(fetch_figure(source, client=self._client))

    @property
    def connections(self) -> int:
        return len(self.server.requests)

    def close(self) -> None:
        self._client.close()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
        self.server.__exit__(None, None, None)


@pytest.fixture
def pods() -> Iterator[Callable[[bytes | Callable[[socket.socket], None]], Pod]]:
    opened: list[Pod] = []

    def make(answer: bytes | Callable[[socket.socket], None]) -> Pod:
        opened.append(Pod(answer))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


MakePod = Callable[[bytes | Callable[[socket.socket], None]], Pod]


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_requests_share_a_connection(pods: MakePod, framing: str) -> None:
    def answer(connection: socket.socket) -> None:
        further = heads(connection)
        for number in range(3):
            if number:
                next(further)
            text = b"load %d\n" % number
            chunk = CHUNKED + b"%x\r\n%b\r\n0\r\nTrailer: z\r\n\r\n" % (len(text), text)
            connection.sendall(page(number) if framing == "length" else chunk)

    pod = pods(answer)
    assert [pod.ask() for _ in range(3)] == [0, 1, 2]
    assert pod.connections == 1
    assert "Connection: keep-alive" in pod.server.requests[0]


@pytest.mark.parametrize(
    "answer",
    [
        ok(b"load 1\n", "Connection: close"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\nload 1\n",
        b"HTTP/1.1 200 OK\r\n\r\nload 1\n",
        ok(b"load 1\n") + ok(b"load 9\n"),
    ],
    ids=["close", "1.0", "until the end", "more than one"],
)
def test_a_connection_that_cannot_stay_is_not_used_again(pods: MakePod, answer: bytes) -> None:
    pod = pods(answer)
    assert [pod.ask(), pod.ask()] == [1, 1]
    assert pod.connections == 2


def test_a_connection_that_the_server_closes_is_opened_anew(pods: MakePod) -> None:
    # The server ends after its answer, without a word: sometimes before the next request is sent,
    # and sometimes after it.
    pod = pods(page(1))
    assert [pod.ask() for _ in range(20)] == [1] * 20
    assert pod.connections == 20


def test_a_request_that_meets_the_end_of_its_connection_is_sent_again(pods: MakePod) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(page(1))
        next(heads(connection), None)  # and then no answer

    pod = pods(answer)
    assert [pod.ask() for _ in range(3)] == [1] * 3
    assert pod.connections == 3


def test_half_an_answer_is_not_asked_for_again(pods: MakePod) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(page(1))
        next(heads(connection))
        connection.sendall(page(2)[:-3])

    pod = pods(answer)
    assert pod.ask() == 1
    with pytest.raises(SourceError, match="closed the connection too early"):
        pod.ask()
    assert pod.connections == 1


def test_an_error_ends_the_connection(pods: MakePod) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")
        next(heads(connection), None)

    pod = pods(answer)
    for _ in range(2):
        with pytest.raises(SourceError, match="HTTP status 500"):
            pod.ask()
    assert pod.connections == 2


def test_pods_are_asked_in_groups() -> None:
    nows = [100.0, 100.1, 100.2, 100.3, 100.6]
    ends = {round(now + together_s(5.0, 5.0, now), 6) for now in nows}
    assert ends == {105.0, 105.5}
    for pause in (4.5, 5.0, 5.5):
        assert abs(together_s(pause, 5.0, 17.3) - pause) <= 0.25
