# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of other programs: push, answer of a service, HTTP request."""

from collections.abc import Iterator, Mapping
import contextlib
import json
import logging
import math
import os
from pathlib import Path
import socket
import threading
import time

import pytest

from controller.config.sections.service_sources import Push, ServiceLevelConfig, ServiceSource
from controller.core.units import NS_PER_MS, NS_PER_SEC
from controller.probes.service_level import push
from controller.probes.service_level.ledger import Ledger, SourceError
from controller.probes.service_level.parse import json_value, metric_value, prometheus_value
from controller.telemetry import http_limits
from controller.telemetry.http import StatusServer
from controller.telemetry.report import PublishedState
from tests.support.hostile.mutations import mutated_bytes
from tests.support.hostile.subjects.subject import Check, Subject
from tests.support.reports import report
from tests.support.waiting import DEADLINE_S, eventually

__all__ = ("SUBJECTS",)

PUSHES = (b"web 12.5\n", b"shop cart -3e-3", b"web nan")
METRICS = b"""\
# HELP request_seconds Time of requests.
# TYPE request_seconds summary
request_seconds{quantile="0.5",route="/"} 0.001
request_seconds{quantile="0.99",route="/a\\"b",} 0.25 1700000000000
request_seconds_sum{route="/"} 12
# TYPE request_seconds_bucket histogram
request_seconds_bucket{le="+Inf"} 17 # {trace_id="abc"} 0.67
idle NaN
"""
ANSWER = json.dumps(
    {
        "status": "success",
        "data": {
            "resultType": "vector",
            "result": [{"metric": {"a": "b"}, "value": [1700000000.5, "0.25"]}],
        },
    }
).encode()
DOCUMENT = json.dumps({"latency": {"p99": [12.5, None]}, "a/b~c": 3, "yes": True}).encode()
REQUESTS = (
    b"GET /metrics HTTP/1.1\r\nHost: node:9464\r\nAuthorization: Bearer abcdefghijklmnop\r\n\r\n",
    b"GET /readyz?x=%20 HTTP/1.0\r\nX: y\r\n z\r\n\r\n",
    b"POST /statusz HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc",
    b"GET /healthz HTTP/1.1\r\nConnection: keep-alive\r\n\r\nGET /statusz HTTP/1.1\r\n\r\n",
)


class Tracebacks(logging.Handler):
    """The records with a traceback or of level ERROR, and messages that are not one line."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        bad = record.exc_info or record.levelno >= logging.ERROR
        if bad or (record.levelno > logging.DEBUG and not text.isprintable()):
            self.found.append(text)


@contextlib.contextmanager
def no_tracebacks(check: Check) -> Iterator[Check]:
    """Extend *check*: nothing of level ERROR is logged, and only single lines."""
    tracebacks = Tracebacks()

    def extended(raw: bytes) -> None:
        check(raw)
        assert not tracebacks.found

    logging.getLogger().addHandler(tracebacks)
    try:
        yield extended
    finally:
        logging.getLogger().removeHandler(tracebacks)


@contextlib.contextmanager
def pushes(home: Path) -> Iterator[Check]:
    """Send datagrams to the real socket."""
    sources = [
        ServiceSource(
            service=service,
            source=Push(users=(os.getuid(),)),
            unit_ns=unit_ns,
            every_ns=NS_PER_SEC,
            timeout_ns=NS_PER_SEC,
            max_age_ns=60 * NS_PER_SEC,
        )
        for service, unit_ns in (("web", NS_PER_MS), ("shop cart", None))
    ]
    ledgers = {source.service: Ledger(source) for source in sources}
    with (
        pytest.MonkeyPatch.context() as patch,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        patch.setattr(push, "_PER_WINDOW", 1 << 30)
        path = home / "socket"
        config = ServiceLevelConfig(socket=path, group=None, sources=tuple(sources))
        receiver = push.PushSocket(config, ledgers)
        sender.connect(str(path))

        def check(raw: bytes) -> None:
            sender.send(raw)
            receiver._read()
            for ledger in ledgers.values():
                value = ledger.reading(time.monotonic_ns()).value
                assert value is None or math.isfinite(value)
                assert value is None or value >= 0 or ledger.source.unit_ns is None
                json.dumps(value, allow_nan=False)

        with no_tracebacks(check) as extended:
            yield extended
        receiver.close()


@contextlib.contextmanager
def pages(_: Path) -> Iterator[Check]:
    """Parse answers of services."""
    labels = [("quantile", "0.99"), ("route", '/a"b')]

    def check(raw: bytes) -> None:
        for read in (
            lambda raw: metric_value(raw, "request_seconds", labels),
            lambda raw: metric_value(raw, "idle", ()),
            prometheus_value,
            lambda raw: json_value(raw, "/latency/p99/0"),
            lambda raw: json_value(raw, "/a~1b~0c"),
        ):
            try:
                assert not math.isinf(read(raw))
            except SourceError as error:
                assert str(error).isprintable() and len(str(error)) < 200

    with no_tracebacks(check) as extended:
        yield extended


@contextlib.contextmanager
def requests(home: Path) -> Iterator[Check]:
    """Send requests to the real server."""
    threads = threading.active_count()  # other tests leave some
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_limits, "_PAUSE_RATIO", 0)
        token = home / "token"
        token.write_text("abcdefghijklmnop")
        published = PublishedState()
        published.report = report(time.monotonic_ns())
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = probe.getsockname()
        server = StatusServer(published, address, healthy_ns=NS_PER_SEC, token_file=token)

        def check(raw: bytes) -> None:
            # The server closes early, with a reset, if it refuses what was sent.
            with (
                socket.create_connection(address, timeout=DEADLINE_S) as client,
                contextlib.suppress(OSError),
            ):
                client.sendall(raw)
                client.shutdown(socket.SHUT_WR)
                while client.recv(1 << 16):
                    pass

        with no_tracebacks(check) as extended:
            yield extended
        server.close()
        eventually("the end of the threads", lambda: threading.active_count() < threads + 20)


SUBJECTS: Mapping[str, Subject] = {
    "push": Subject(examples=PUSHES, mutate=mutated_bytes, open=pushes),
    "page": Subject(examples=(METRICS, ANSWER, DOCUMENT), mutate=mutated_bytes, open=pages),
    "request": Subject(examples=REQUESTS, mutate=mutated_bytes, open=requests),
}
