# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of an agent: /, /metrics, /statusz, /healthz and /readyz, made of published state.

A page is made in the thread of a request, in pieces between which a tick may run.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache
from http import HTTPStatus
import json
import os
import time
from typing import TYPE_CHECKING, Any

from controller.core.units import NS_PER_SEC
from controller.host.names import utf8
from controller.page.document import policy, render
from controller.page.hours import Hours
from controller.telemetry.report import PublishedState

if TYPE_CHECKING:
    from controller.page.view import Tracker

__all__ = ("HTML", "HTML_HEADERS", "PROTECTED", "TEXT", "Page", "Pages", "make_pages")

TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
# Of the page for people, which other sites must neither frame nor learn about.
HTML_HEADERS = (
    ("Content-Security-Policy", f"{policy(live=True)}; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)
# Pages with details of all workloads, which the token protects; the others only have the health.
PROTECTED = frozenset({"/", "/metrics", "/statusz"})

# Status, content type and body.
Page = tuple[HTTPStatus, str, bytes]
# What makes each page, by path.
Pages = Mapping[str, Callable[[], Page]]


def make_pages(
    published: PublishedState, hours: Hours | None, *, healthy_ns: int, details: bool
) -> Pages:
    """Return the pages about *published*.

    *hours* and *healthy_ns* are those of ``StatusServer``. *details*: whether /readyz, which
    everyone may read, has names.
    """

    @cache
    def tracker() -> "Tracker":
        # With the first request, because few agents are looked at.
        from controller.page.view import Tracker

        return Tracker()

    return {
        "/": lambda: _people(published, tracker(), hours),
        "/metrics": lambda: _metrics(published),
        "/statusz": lambda: _status(published),
        "/healthz": lambda: _health(published, healthy_ns),
        "/readyz": lambda: _ready(published, details=details),
    }


def _metrics(published: PublishedState) -> Page:
    # With the first scrape, because prometheus_client would take a tenth of the agent's start.
    from controller.telemetry.metrics.exporter import Exporter

    published.is_asked = True
    return HTTPStatus.OK, _METRICS, Exporter(published).render()


def _people(published: PublishedState, tracker: "Tracker", hours: Hours | None) -> Page:
    from controller.page.node import node_document

    # Field by field, because the interpreter is not given to a tick while one text is parsed.
    status = {name: json.loads(text) for name, text in _status_fields(published)}
    # Pages are made one at a time, so one tracker is enough.
    view = tracker.update(status)
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None
    parts = []
    document = node_document(view, status, hours, zone, os.uname().nodename, os.cpu_count() or 1)
    for part in render(document):
        parts.append(part)
        published.yield_to_tick()
    return HTTPStatus.OK, HTML, "".join(parts).encode(errors="backslashreplace")


def _status(published: PublishedState) -> Page:
    parts = [f'"{name}": {text}' for name, text in _status_fields(published)]
    return HTTPStatus.OK, "application/json", utf8(f"{{{', '.join(parts)}}}")


def _status_fields(published: PublishedState) -> Iterator[tuple[str, str]]:
    published.is_asked = True
    # After one tick that takes too long the page is made without further waits.
    yields = True
    for name, value in published.status():
        yield name, json.dumps(value, default=_fields, ensure_ascii=False)
        yields = yields and published.yield_to_tick()


def _fields(record: Any) -> dict[str, Any]:
    # Not asdict(): its deep copy takes most of the time of a page with many services.
    return {name: getattr(record, name) for name in record.__slots__}


def _health(published: PublishedState, healthy_ns: int) -> Page:
    report = published.report
    if report is None:
        return HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"no tick yet\n"
    age_ns = time.monotonic_ns() - report.time_ns
    ok = age_ns < healthy_ns
    status = HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE
    return status, TEXT, f"last tick {age_ns / NS_PER_SEC:.3f}s ago\n".encode()


def _ready(published: PublishedState, *, details: bool) -> Page:
    report = published.report
    if report is None:
        return HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"no tick yet\n"
    word = "degraded" if report.ready else "not ready"
    lines = [
        f"{word}: {each.source}: {each.message if details else 'see /statusz'}"
        for each in report.degraded
    ]
    # A source that was lost later leaves the agent Ready: a restart would not bring it back, and
    # an agent that is not Ready stops a rollout.
    status = HTTPStatus.OK if report.ready else HTTPStatus.SERVICE_UNAVAILABLE
    text = "\n".join(lines or ["ready"])
    return status, TEXT, f"{text}\n".encode(errors="backslashreplace")
