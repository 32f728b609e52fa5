# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Figures per pod: which pods are asked, and what is the figure of their service."""

from collections.abc import Iterator
from pathlib import Path
import socket
import threading
import time

import pytest

from controller.config.sections.service_sources import (
    Endpoint,
    MetricLine,
    PodAddress,
    PodFigures,
    ServiceLevelConfig,
)
from controller.core.units import NS_PER_MS
from controller.probes.service_level.collector import ServiceLevels
from tests.support.http.raw_server import RawHttpServer, ok, response
from tests.support.waiting import eventually
from tests.unit.probes.service_level.collecting import LONG_NS, reading, state


class Pods:
    """The pods of services, as the test sets them."""

    def __init__(self, *pods: PodAddress) -> None:
        self._pods, self.revision = pods, 1

    def set(self, *pods: PodAddress) -> None:
        self._pods = pods
        self.revision += 1

    def addresses(self) -> tuple[PodAddress, ...]:
        return self._pods


def pod(number: int, service: str = "web", profile: str = "envoy") -> PodAddress:
    return PodAddress(service, profile, f"127.0.0.{number}")


@pytest.fixture
def servers() -> Iterator[tuple[RawHttpServer, RawHttpServer]]:
    """Two pods, with a page at the same port of two addresses."""
    with (
        RawHttpServer(ok(b"p99 0.003\n")) as one,
        RawHttpServer(ok(b"p99 0.008\n"), address=("127.0.0.2", one.port)) as two,
    ):
        yield one, two


@pytest.fixture
def levels(servers: tuple[RawHttpServer, RawHttpServer], tmp_path: Path) -> Iterator[ServiceLevels]:
    endpoint = Endpoint(url="/stats?x=1", token_file=None, header_files=(), ca_file=None)
    figures = PodFigures(
        profile="envoy",
        port=servers[0].port,
        line=MetricLine(endpoint=endpoint, metric="p99", labels=()),
        unit_ns=1000 * NS_PER_MS,
        every_ns=100 * NS_PER_MS,
        timeout_ns=LONG_NS,
        max_age_ns=LONG_NS,
    )
    config = ServiceLevelConfig(socket=tmp_path / "socket", group=None, pods={"envoy": figures})
    opened = ServiceLevels(config)
    yield opened
    opened.close()


def test_the_figure_of_a_service_is_that_of_its_worst_pod(
    levels: ServiceLevels, servers: tuple[RawHttpServer, RawHttpServer]
) -> None:
    one, two = servers
    pods = Pods(pod(1), pod(2), pod(1, "other", "nginx"))
    levels.follow_pods(pods)
    eventually("both pods", lambda: one.requests and two.requests)
    eventually("the worst", lambda: reading(levels, "web").value == 8 * NS_PER_MS)
    assert one.requests[0].startswith("GET /stats?x=1 HTTP/1.1\r\n")
    # Another profile says nothing of a page, so its pods are not asked.
    assert [each.service for each in levels.poll(time.monotonic_ns())] == ["web"]
    # A pod without requests, and one that does not answer, hide no other one.
    two.answer = ok(b"p99 NaN\n")
    eventually("the other pod", lambda: reading(levels, "web").value == 3 * NS_PER_MS)
    two.answer = response(503, b"")
    eventually("an error", lambda: state(levels, "web").errors["status"])
    found = state(levels, "web")
    assert (found.kind, found.problem) == ("pods", "HTTP status 503")
    assert reading(levels, "web").value == 3 * NS_PER_MS


def test_pods_come_and_go(
    levels: ServiceLevels, servers: tuple[RawHttpServer, RawHttpServer]
) -> None:
    one, two = servers
    pods = Pods(pod(1))
    levels.follow_pods(pods)
    eventually("the figure", lambda: reading(levels, "web").value == 3 * NS_PER_MS)
    assert not two.requests
    pods.set(pod(1), pod(2))
    levels.follow_pods(pods)
    eventually("the second pod", lambda: reading(levels, "web").value == 8 * NS_PER_MS)
    answers = levels.answers
    pods.set(pod(2))
    levels.follow_pods(pods)
    asked = len(one.requests)
    eventually("the second pod again", lambda: levels.answers > answers + 2)
    # The request that was under way may have come too.
    assert len(one.requests) <= asked + 1
    pods.set()
    levels.follow_pods(pods)
    assert levels.poll(time.monotonic_ns()) == ()


def test_an_unchanged_list_is_not_read_again(levels: ServiceLevels) -> None:
    pods = Pods(pod(1))
    levels.follow_pods(pods)
    pods._pods = ()
    levels.follow_pods(pods)
    assert [each.service for each in levels.poll(time.monotonic_ns())] == ["web"]


def test_the_connection_to_a_pod_that_is_gone_is_closed(
    levels: ServiceLevels, servers: tuple[RawHttpServer, RawHttpServer]
) -> None:
    ended = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(ok(b"p99 0.003\n"))
        while connection.recv(65536):
            connection.sendall(ok(b"p99 0.004\n"))
        ended.set()

    servers[0].answer = answer
    pods = Pods(pod(1))
    levels.follow_pods(pods)
    eventually("a second answer", lambda: reading(levels, "web").value == 4 * NS_PER_MS)
    assert not ended.is_set()
    pods.set()
    levels.follow_pods(pods)
    eventually("the end", ended.is_set)
