# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The collector, with polls of real servers, and reloads."""

from dataclasses import replace
import errno
import logging
from pathlib import Path
import shutil
import threading

import pytest

from controller.config.sections.service_sources import Endpoint, MetricLine, ServiceLevelConfig
from controller.core.units import NS_PER_MS, NS_PER_SEC
from controller.probes.service_level.collector import ServiceLevels
from controller.probes.service_level.ledger import Ledger, Reason, SourceError
from controller.probes.service_level.poll import fetch_all
from tests.support.http.raw_server import RawHttpServer, ok
from tests.support.needs import needs_root
from tests.support.waiting import eventually
from tests.unit.probes.service_level.collecting import polls, pushes, reading, send, state

pytestmark = needs_root("to send as several users")


def test_a_polled_figure_that_is_no_time_is_a_problem(place: Path) -> None:
    with RawHttpServer(ok(b'{"a": -3}')) as server:
        source = replace(polls(server), unit_ns=NS_PER_SEC)
        levels = ServiceLevels(ServiceLevelConfig(socket=place, group=None, sources=(source,)))
        eventually("the errors", lambda: state(levels, "web").errors["format"] >= 1)
        assert state(levels, "web").problem == "-3 is no time in the unit of the source"
        assert reading(levels, "web").value is None
        server.answer = ok(b'{"a": 1e305}')
        eventually("the problem", lambda: "1e+305" in state(levels, "web").problem)
        levels.close()
        # Numbers that are no times may be negative.
        number = replace(source, unit_ns=None)
        server.answer = ok(b'{"a": -3}')
        levels = ServiceLevels(ServiceLevelConfig(socket=place, group=None, sources=(number,)))
        eventually("the figure", lambda: reading(levels, "web").value == -3)
        levels.close()


def test_a_native_histogram_is_told_by_the_agent_and_when_asked_once(place: Path) -> None:
    page = b'a_bucket{le="+Inf"} 1200\na_sum 14.4\na_count 1200\n'
    with RawHttpServer(ok(page)) as server:
        endpoint = Endpoint(url=server.url, token_file=None, header_files=(), ca_file=None)
        line = MetricLine(endpoint=endpoint, metric="a", labels=(), quantile=0.99)
        source = replace(polls(server), source=line)
        ((_, answer),) = fetch_all([source])
        assert str(answer) == "a has no bounds, as a native histogram; use a_sum per a_count"
        levels = ServiceLevels(ServiceLevelConfig(socket=place, group=None, sources=(source,)))
        eventually("two errors", lambda: state(levels, "web").errors["format"] >= 2)
        assert state(levels, "web").problem == str(answer)
        assert reading(levels, "web").value is None
        levels.close()


def test_figures_are_counted_and_failures_are_not(place: Path) -> None:
    source = pushes("web")
    levels = ServiceLevels(ServiceLevelConfig(socket=place, group=None, sources=(source,)))
    assert levels.answers == 0
    send(place, b"web 3")
    eventually("the figure", lambda: levels.answers == 1)
    send(place, b"web x")
    eventually("the error", lambda: sum(state(levels, "web").errors.values()) == 1)
    assert levels.answers == 1
    levels.close()
    assert ServiceLevels(None).answers == 0


def test_a_change_is_logged_before_it_can_be_read(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger(pushes("web"))
    seen = []

    class ReadState(logging.Filter):
        def filter(self, _: logging.LogRecord) -> bool:
            now = ledger.state(0)
            seen.append((now.value, now.errors["status"], now.problem))
            return True

    with caplog.at_level(logging.INFO), caplog.filtering(ReadState()):
        ledger.failed(SourceError(Reason.STATUS, "HTTP status 503"))
        ledger.answered(3, 0)
    assert seen == [(None, 0, ""), (None, 1, "HTTP status 503")]
    assert (ledger.state(0).value, ledger.state(0).problem) == (3e6, "")


def test_a_source_that_fails_and_recovers(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with RawHttpServer(ok(b'{"a": 3}')) as server:
        config = ServiceLevelConfig(socket=place, group=None, sources=(polls(server),))
        levels = ServiceLevels(config)
        assert not place.exists()  # no service pushes
        eventually("the figure", lambda: reading(levels, "web").value == 3)
        server.answer = b"HTTP/1.1 503 Busy\r\n\r\n"
        eventually("the errors", lambda: state(levels, "web").errors["status"] >= 2)
        assert reading(levels, "web").value == 3  # still young enough
        assert state(levels, "web").problem == "HTTP status 503"
        server.answer = ok(b'{"a": 4}')
        eventually("the figure", lambda: reading(levels, "web").value == 4)
        assert state(levels, "web").problem == ""
        levels.close()
    assert [r.getMessage() for r in caplog.records if r.name.endswith("ledger")] == [
        "service level of web: HTTP status 503",
        "service level of web: answers again",
    ]


def test_a_server_that_hangs_does_not_delay_other_sources(place: Path) -> None:
    with RawHttpServer(b"") as dead, RawHttpServer(ok(b'{"a": 3}')) as server:
        dead.answer = dead.hang
        sources = (polls(dead, "dead", 100 * NS_PER_MS), polls(server))
        levels = ServiceLevels(ServiceLevelConfig(socket=place, group=None, sources=sources))
        eventually("the errors", lambda: state(levels, "dead").errors["timeout"] >= 1)
        eventually("the figure", lambda: reading(levels, "web").value == 3)
        levels.close()


def test_a_reload_keeps_the_state_of_unchanged_sources(levels: ServiceLevels, place: Path) -> None:
    send(place, b"web 1")
    eventually("the figure", lambda: reading(levels, "web").value == 1e6)
    other = place.with_name("other")
    sources = (pushes("web"), pushes("new"))
    levels.reconfigure(ServiceLevelConfig(socket=other, group=None, sources=sources))
    assert reading(levels, "web").value == 1e6
    assert reading(levels, "new").value is None
    assert not place.exists()
    send(other, b"new 2")
    eventually("the figure", lambda: reading(levels, "new").value == 2e6)
    levels.reconfigure(None)
    assert levels.poll(0) == ()
    assert not other.exists()
    shutil.rmtree(place.parent)


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "too many"), RuntimeError("no thread")])
def test_a_change_that_fails_leaves_the_sources_of_before(
    place: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def config(name: str) -> ServiceLevelConfig:
        return ServiceLevelConfig(socket=place, group=None, sources=(pushes(name),))

    def services() -> list[str]:
        return [each.service for each in levels.poll(0)]

    levels = ServiceLevels(config("web"))
    start, failures = threading.Thread.start, iter([error])

    def fail(thread: threading.Thread) -> None:
        if (found := next(failures, None)) is not None:
            raise found
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(OSError, match="no thread"):
        levels.reconfigure(config("shop"))
    assert services() == ["web"]
    send(place, b"web 3")
    eventually("a figure", lambda: reading(levels, "web").value is not None)
    levels.reconfigure(config("shop"))
    assert services() == ["shop"]
    levels.close()
