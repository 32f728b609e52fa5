# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Watches of the API client: events, errors in them, their end, bounds."""

from dataclasses import replace
import json
import socket
import threading

import pytest

from controller.kube.client.errors import ApiError, ApiUnreachable
from tests.support.http.raw_server import CHUNKED, RawHttpServer, response
from tests.support.kube.limits import PATIENT
from tests.support.waiting import DEADLINE_S
from tests.unit.kube.client.answers import Connect, chunk, watch

GATHERING = replace(PATIENT, gather_s=DEADLINE_S)


def test_a_watch_yields_events_as_they_arrive_and_stops_at_their_end(connect: Connect) -> None:
    seen = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(b'HTTP/1.1 200 OK\r\n\r\n{"type": "ADDED", "num')
        connection.sendall(b'ber": 1}\n{"type": "MODIFIED"}\n{"ty')
        assert seen.wait(DEADLINE_S)
        connection.sendall(b'pe": "DELETED"}\n')

    with RawHttpServer(answer) as server, connect(server).watch("/x", {"a": "b"}) as events:
        assert next(events) == {"type": "ADDED", "number": 1}
        assert next(events) == {"type": "MODIFIED"}
        seen.set()
        assert list(events) == [{"type": "DELETED"}]
    assert server.requests[0].startswith("GET /x?a=b&watch=1 ")


def test_an_object_that_is_nested_too_deeply_does_not_end_a_watch(connect: Connect) -> None:
    deep = b'{"type": "ADDED", "object": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    events = b'{"type": "ADDED"}\n' + deep + b'{"type": "DELETED"}\n'
    with RawHttpServer(b"HTTP/1.1 200 OK\r\n\r\n" + events) as server:
        assert watch(connect(server)) == [{"type": "ADDED"}, {"type": "DELETED"}]


def test_an_error_event_in_a_watch_is_raised(connect: Connect) -> None:
    event = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
    with RawHttpServer(b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(event).encode() + b"\n") as server:
        with pytest.raises(ApiError, match="410 Expired: too old"):
            watch(connect(server))
        server.answer = response(410, b"gone")
        with pytest.raises(ApiError, match="410"):
            watch(connect(server))


def test_a_watch_is_bounded_by_silence_and_not_by_the_limit_of_a_response(connect: Connect) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b'{"type": "BOOKMARK"}\n' * 8)
        server.hang(connection)

    count = 0
    with (
        RawHttpServer(answer) as server,
        pytest.raises(ApiUnreachable, match="no answer in time"),
    ):
        api = connect(server, replace(PATIENT, silence_s=77))
        with api.watch("/x", {}) as events:
            request = api._requests[threading.get_ident()]
            assert request._timer is not None and request._timer.finished.is_set()
            assert request._socket is not None
            timeout_s = request._socket.gettimeout()
            assert timeout_s is not None and 0.8 * 77 <= timeout_s <= 77
            request._socket.settimeout(0.05)
            for _ in events:
                count += 1
    assert count == 8


def test_watches_that_are_silent_together_do_not_end_together(connect: Connect) -> None:
    found = set()
    with RawHttpServer(CHUNKED) as server:
        for _ in range(10):
            api = connect(server, replace(PATIENT, silence_s=77))
            with api.watch("/x", {}):
                socket = api._requests[threading.get_ident()]._socket
                assert socket is not None
                found.add(socket.gettimeout())
    assert len(found) == 10


def test_a_line_of_a_watch_is_bounded(connect: Connect) -> None:
    answer = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (9 << 20)
    with RawHttpServer(answer) as server, pytest.raises(ApiUnreachable, match="more than 8 MiB"):
        watch(connect(server))


def test_events_that_follow_another_are_read_together_unless_there_is_much_data(
    connect: Connect,
) -> None:
    handled = [threading.Event() for _ in range(5)]
    alone = []

    def answer(connection: socket.socket) -> None:
        first, second, third, last = (chunk({"number": number}) for number in range(1, 5))
        connection.sendall(CHUNKED + first[:9])
        connection.sendall(first[9:])
        assert handled[1].wait(DEADLINE_S)
        connection.sendall(second)
        alone.append(handled[2].wait(0.3))
        large = chunk({"number": 0, "text": "x" * 100_000})
        connection.sendall(large + third + last[:9])
        assert handled[3].wait(DEADLINE_S)
        connection.sendall(last[9:])  # the rest of an incomplete event is read without a wait
        assert handled[4].wait(DEADLINE_S)
        connection.sendall(b"0\r\n\r\n")

    order = []
    with RawHttpServer(answer) as server, connect(server, GATHERING).watch("/x", {}) as events:
        for event in events:
            order.append(event["number"])
            handled[event["number"]].set()
    assert order == [1, 2, 0, 3, 4]
    assert alone == [False]


def test_a_watch_that_waits_for_more_events_can_be_aborted(connect: Connect) -> None:
    received = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(CHUNKED + chunk({"number": 1}))
        server.hang(connection)

    def ask() -> None:
        with api.watch("/x", {}) as events, pytest.raises(ApiUnreachable, match="by the agent"):
            for _ in events:
                received.set()

    with RawHttpServer(answer) as server:
        api = connect(server, GATHERING)
        thread = threading.Thread(target=ask)
        thread.start()
        assert received.wait(DEADLINE_S)
        api.abort_until_ended(thread)
        assert not thread.is_alive()
