# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Mutated pushes, answers of services and HTTP requests: used, or refused without a traceback."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
import contextlib
from contextlib import AbstractContextManager
import json
import logging
import math
from multiprocessing import get_context
import os
from pathlib import Path
from random import Random
import re
import socket
import tempfile
import threading
import time

import pytest

from controller.config.sections.service_level import Push, ServiceLevelConfig, ServiceSource
from controller.core.units import NS_PER_MS, NS_PER_SEC
from controller.probes.service_level import push
from controller.probes.service_level.ledger import Ledger, SourceError
from controller.probes.service_level.parse import json_value, metric_value, prometheus_value
from controller.telemetry import http_limits
from controller.telemetry.http import StatusServer
from controller.telemetry.report import PublishedState
from tests.mutations import mutated_bytes
from tests.reports import report

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

Mutate = Callable[[Random], None]


@contextlib.contextmanager
def pushes() -> Iterator[Mutate]:
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
        tempfile.TemporaryDirectory(prefix="sweetpoint-") as home,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        patch.setattr(push, "_PER_WINDOW", 1 << 30)
        path = Path(home) / "socket"
        config = ServiceLevelConfig(socket=path, group=None, sources=tuple(sources))
        receiver = push.PushSocket(config, ledgers)
        sender.connect(str(path))

        def mutate(random: Random) -> None:
            message = random.choice((b"web 12.5\n", b"shop cart -3e-3", b"web nan"))
            sender.send(mutated_bytes(random, message))
            receiver._read()
            for ledger in ledgers.values():
                value = ledger.reading(time.monotonic_ns()).value
                assert value is None or math.isfinite(value)
                assert value is None or value >= 0 or ledger.source.unit_ns is None
                json.dumps(value, allow_nan=False)

        yield mutate
        receiver.close()


@contextlib.contextmanager
def pages() -> Iterator[Mutate]:
    """Parse answers of services."""
    labels = [("quantile", "0.99"), ("route", '/a"b')]

    def mutate(random: Random) -> None:
        for read, body in (
            (lambda raw: metric_value(raw, "request_seconds", labels), METRICS),
            (lambda raw: metric_value(raw, "idle", ()), METRICS),
            (prometheus_value, ANSWER),
            (lambda raw: json_value(raw, "/latency/p99/0"), DOCUMENT),
            (lambda raw: json_value(raw, "/a~1b~0c"), DOCUMENT),
        ):
            try:
                assert not math.isinf(read(mutated_bytes(random, body)))
            except SourceError as error:
                assert str(error).isprintable() and len(str(error)) < 200

    yield mutate


@contextlib.contextmanager
def requests() -> Iterator[Mutate]:
    """Send requests to the real server."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:
        patch.setattr(http_limits, "_PAUSE_RATIO", 0)
        token = Path(home) / "token"
        token.write_text("abcdefghijklmnop")
        published = PublishedState()
        published.report = report(time.monotonic_ns())
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = probe.getsockname()
        server = StatusServer(published, address, healthy_ns=NS_PER_SEC, token_file=token)

        def mutate(random: Random) -> None:
            with socket.create_connection(address, timeout=10) as client:
                client.sendall(mutated_bytes(random, random.choice(REQUESTS)))
                # The server closes early, with a reset, if it refuses what was sent.
                with contextlib.suppress(ConnectionError, OSError):
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(1 << 16):
                        pass

        yield mutate
        server.close()
        assert threading.active_count() < 20


SUBJECTS: dict[str, Callable[[], AbstractContextManager[Mutate]]] = {
    "push": pushes,
    "page": pages,
    "request": requests,
}


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


def check(subject: str, numbers: range, mutate: Mutate) -> None:
    """Check the mutations with *numbers*; the number of one that fails is in the notes."""
    tracebacks = Tracebacks()
    logging.getLogger().addHandler(tracebacks)
    try:
        for number in numbers:
            try:
                mutate(Random(f"{subject} {number}"))
                assert not tracebacks.found
            except BaseException as error:
                error.add_note(f"mutation {number} of {subject}")
                raise
    finally:
        logging.getLogger().removeHandler(tracebacks)


@pytest.mark.parametrize(
    ("subject", "number"), [("push", 10_000), ("page", 10_000), ("request", 3000)]
)
def test_a_mutation_is_used_or_refused(
    subject: str, number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with SUBJECTS[subject]() as mutate:
        check(subject, range(number), mutate)
    assert "Traceback" not in capfd.readouterr().err


def growth_bytes(subject: str) -> int:
    """Return how much the peak memory of a process grows after the first 1000 mutations."""
    with SUBJECTS[subject]() as mutate:
        check(subject, range(1000), mutate)
        before = peak_bytes()
        check(subject, range(1000, 11_000), mutate)
        return peak_bytes() - before


def peak_bytes() -> int:
    match = re.search(r"^VmHWM:\s+([0-9]+) kB$", Path("/proc/self/status").read_text(), re.M)
    assert match
    return 1024 * int(match[1])


@pytest.mark.soak
@pytest.mark.parametrize("subject", SUBJECTS)
def test_mutations_do_not_fill_the_memory(subject: str) -> None:
    # In a process of its own: memory that earlier tests freed would hide the growth.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        grown = pool.submit(growth_bytes, subject).result()
    print(f"{subject}: {grown / 2**20:.1f} MiB more after 10000 mutations")
    assert grown <= 16 << 20
