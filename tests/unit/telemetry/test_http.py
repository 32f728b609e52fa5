# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The HTTP server over a real socket: hosts, floods, slow clients, taken ports."""

import contextlib
from functools import partial
from http import HTTPStatus
import http.client
import json
import os
import socket
import struct
import threading
import time

import pytest

from controller.core.model import (
    CgroupId,
    QosClass,
    Workload,
)
from controller.demo.programs import free_port
from controller.telemetry.http import StatusServer
from controller.telemetry.http_limits import Pacer, Peers
from controller.telemetry.pages import Page
from controller.telemetry.report import PublishedState
from tests.support.http.status_pages import get
from tests.support.reports import report
from tests.support.waiting import DEADLINE_S, eventually


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9464", 200),
        ("[::1]:9464", 200),
        ("10.1.2.3", 200),
        ("LocalHost:1", 200),
        (os.uname().nodename, 200),
        ("", 200),
        ("evil.example:9464", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("[::1", 421),
    ],
)
def test_without_a_token_no_foreign_name_is_served(
    served: tuple[StatusServer, int], published: PublishedState, host: str, status: int
) -> None:
    published.report = report(1)
    for page in ("/", "/metrics", "/statusz"):
        connection = http.client.HTTPConnection("127.0.0.1", served[1], timeout=DEADLINE_S)
        with contextlib.closing(connection):
            connection.request("GET", page, headers={"Host": host})
            assert connection.getresponse().status == status


def test_a_silent_client_does_not_delay_others(port: int, published: PublishedState) -> None:
    published.report = report(time.monotonic_ns())
    with socket.create_connection(("127.0.0.1", port)):
        assert get(port, "/healthz")[0] == 200


def test_stalled_connections_are_closed_for_new_ones(
    port: int,
    published: PublishedState,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Only the number of connections ends one here.
    monkeypatch.setattr("controller.telemetry.http._Handler.timeout", 2 * DEADLINE_S)
    monkeypatch.setattr("controller.telemetry.http_limits._DEADLINE_S", 2 * DEADLINE_S)
    published.report = report(time.monotonic_ns())
    address = ("127.0.0.1", port)
    with contextlib.ExitStack() as clients:
        stalled = [
            clients.enter_context(socket.create_connection(address, timeout=DEADLINE_S))
            for _ in range(70)
        ]
        assert get(port, "/healthz")[0] == 200

        def serving() -> int:
            names = [thread.name for thread in threading.enumerate()]
            return sum(name.endswith("(process_request_thread)") for name in names)

        eventually("the threads of one peer's connections", lambda: serving() <= 16)
        assert stalled[0].recv(1) == b""
        for each in stalled:
            # Closed with a reset, which must not cause a traceback.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert get(port, "/healthz")[0] == 200
    assert capfd.readouterr().err == ""


def test_pages_of_large_nodes_are_shared(
    published: PublishedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that stands still: all requests come within the second in which a page is shared.
    still = partial(Pacer, lambda: 100.0, lambda: 0.0, lambda _: None)
    monkeypatch.setattr("controller.telemetry.http.Pacer", still)
    port = free_port()
    server = StatusServer(published, ("127.0.0.1", port), healthy_ns=10**9)

    def count(workloads: int) -> int:
        record = Workload("w", CgroupId("cpu", 1), "/w", QosClass.BE, "w", "")
        published.report = report(time.monotonic_ns(), workloads=(record,) * workloads)
        return len(json.loads(get(port, "/statusz")[1])["workloads"])

    assert [count(3), count(4), count(300), count(300)] == [3, 4, 300, 300]
    assert count(400) == 300
    assert count(5) == 5
    server.close()


@pytest.mark.parametrize("name", ["/healthz", "/metrics"])
def test_the_cpu_time_of_a_request_is_counted(
    port: int, server: StatusServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def page() -> Page:
        end_s = time.thread_time() + 0.1
        while time.thread_time() < end_s:
            pass
        return HTTPStatus.OK, "text/plain", b""

    monkeypatch.setitem(server._pages, name, page)
    before_s = server.cpu_s
    assert get(port, name)[0] == 200
    eventually("the CPU time of the request", lambda: server.cpu_s >= before_s + 0.1)


@pytest.mark.timed
@pytest.mark.parametrize(
    ("page", "cpus"), [("/healthz", 0.1), ("/readyz", 0.1), ("/nothing", 0.1), ("/metrics", 0.2)]
)
def test_a_flood_takes_a_bounded_part_of_a_cpu(
    port: int, server: StatusServer, published: PublishedState, page: str, cpus: float
) -> None:
    published.report = report(time.monotonic_ns())
    end_s = time.monotonic() + 1.5

    def flood() -> None:
        while time.monotonic() < end_s:
            with contextlib.suppress(OSError):
                get(port, page)

    began_s, before_s = time.monotonic(), server.cpu_s
    threads = [threading.Thread(target=flood) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    assert get(port, "/healthz")[0] == 200
    for thread in threads:
        thread.join()
    # The last pages are followed by their pauses later.
    assert 0 < server.cpu_s - before_s < cpus * (time.monotonic() - began_s) + 0.1


def test_a_client_that_drips_bytes_is_cut(
    port: int, published: PublishedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.telemetry.http_limits._DEADLINE_S", 0.5)
    with socket.create_connection(("127.0.0.1", port), timeout=0.05) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nX: ")

        def cut() -> bool:
            try:
                client.sendall(b"y")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        eventually("the end of the connection", cut)


def test_a_long_head_is_refused(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\n" + b"X: %s\r\n" % (b"y" * 9000) * 2)
        assert client.recv(100).startswith(b"HTTP/1.0 431 ")
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as client:
        client.sendall(b"GET /" + b"y" * 16380)
        assert client.recv(100) == b""


def test_another_host_is_refused_above_its_rate(
    published: PublishedState, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that stands still: all requests come at once, however slow the machine is.
    monkeypatch.setattr("controller.telemetry.http.Peers", partial(Peers, lambda: 100.0))
    port = free_port()
    server = StatusServer(published, ("127.0.0.1", port), healthy_ns=10**9)
    published.report = report(time.monotonic_ns())

    def ask(source: str) -> bool:
        try:
            with socket.create_connection(
                ("127.0.0.1", port), timeout=DEADLINE_S, source_address=(source, 0)
            ) as client:
                client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
                return client.recv(20).startswith(b"HTTP/1.0 200")
        except OSError:
            return False

    # An address that differs from that of the server stands for another host.
    assert [ask("127.0.0.2") for _ in range(45)] == [True] * 40 + [False] * 5
    assert ask("127.0.0.1")
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert line.startswith("http: too many requests from 127.0.0.2, refused")
    server.close()


def test_a_taken_port_is_named_and_tried_again_until_it_is_free(
    published: PublishedState, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.telemetry.http._RETRY_S", 0.01)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = StatusServer(published, ("127.0.0.1", port), healthy_ns=int(DEADLINE_S * 1e9))
        eventually("more attempts", lambda: published.http_listen_failures >= 3)
        errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
        assert len(errors) == 1
        assert errors[0].startswith(f"http: cannot listen on 127.0.0.1:{port}: Address already in")
    published.report = report(time.monotonic_ns())
    try:
        eventually("the pages", lambda: _answers(port))
        failures = json.loads(get(port, "/statusz")[1])["http_listen_failures"]
        assert failures == published.http_listen_failures >= 3
    finally:
        server.close()
    eventually("no answer", lambda: not _answers(port))


def test_a_server_that_never_listened_can_be_closed(published: PublishedState) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = StatusServer(published, taken.getsockname()[:2], healthy_ns=10**9)
        server.close()
    eventually(
        "the end of its thread",
        lambda: "http" not in {thread.name for thread in threading.enumerate()},
    )


def _answers(port: int) -> bool:
    try:
        return get(port, "/healthz")[0] == 200
    except OSError:
        return False


@pytest.mark.parametrize("page", ["/metrics", "/statusz"])
def test_a_page_waits_for_the_end_of_a_tick_but_not_of_one_that_hangs(
    port: int, published: PublishedState, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.telemetry.report._YIELD_S", DEADLINE_S)
    published.report = report(time.monotonic_ns())
    published.between_ticks.clear()
    over = threading.Timer(0.05, published.between_ticks.set)
    over.start()
    assert get(port, page)[0] == 200
    assert published.between_ticks.is_set()
    over.join()
    monkeypatch.setattr("controller.telemetry.report._YIELD_S", 0.01)
    published.between_ticks.clear()
    assert get(port, page)[0] == 200
