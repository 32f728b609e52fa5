# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Means of two counters on the pages of the Prometheus client library."""

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, generate_latest
import pytest

from controller.probes.service_level.counters import CounterWindow
from controller.probes.service_level.ledger import Reason, SourceError
from controller.probes.service_level.parse import counter_values

# Requests as (route, time of an answer in seconds).
REQUESTS = st.lists(
    st.tuples(st.sampled_from(["/", "/a", "/b"]), st.floats(0.0001, 2.0)), max_size=30
)

# One answer per route, so that each has a series.
FIRST = [("/", 9.0), ("/a", 9.0), ("/b", 9.0)]


class Service:
    """The time and the number of answers by route, and their page."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._seconds = Counter("answer_seconds", "", ["route"], registry=self._registry)
        self._answers = Counter("answers", "", ["route"], registry=self._registry)

    def answer(self, requests: list[tuple[str, float]]) -> None:
        for route, seconds in requests:
            self._seconds.labels(route).inc(seconds)
            self._answers.labels(route).inc()

    @property
    def page(self) -> bytes:
        return generate_latest(self._registry)


def read(window: CounterWindow, page: bytes, *labels: tuple[str, str]) -> float:
    total = counter_values(page, "answer_seconds_total", labels)
    return window.update(total, counter_values(page, "answers_total", labels))


def mean(requests: list[tuple[str, float]], route: str = "") -> float:
    times = [seconds for at, seconds in requests if route in ("", at)]
    return sum(times) / len(times) if times else math.nan


def about(value: float) -> object:
    return pytest.approx(value, rel=1e-6, nan_ok=True)


@given(before=REQUESTS, since=REQUESTS)
def test_only_answers_since_the_last_page_count(
    before: list[tuple[str, float]], since: list[tuple[str, float]]
) -> None:
    service, every, one = Service(), CounterWindow(), CounterWindow()
    service.answer([*FIRST, *before])
    assert math.isnan(read(every, service.page))
    assert math.isnan(read(one, service.page, ("route", "/")))
    service.answer(since)
    assert read(every, service.page) == about(mean(since))
    assert read(one, service.page, ("route", "/")) == about(mean(since, "/"))


@given(before=REQUESTS, since=REQUESTS)
def test_after_a_restart_the_answers_since_then_count(
    before: list[tuple[str, float]], since: list[tuple[str, float]]
) -> None:
    first, again, window = Service(), Service(), CounterWindow()
    # So many before the restart that no counter can look as if it had grown.
    first.answer(40 * FIRST + before)
    read(window, first.page)
    again.answer([("/", 0.5), *since])
    assert read(window, again.page) == about(mean([("/", 0.5), *since]))


def test_a_series_that_was_not_on_the_last_page_does_not_count() -> None:
    service, window = Service(), CounterWindow()
    service.answer([("/", 1.0)])
    read(window, service.page)
    service.answer([("/", 0.5), ("/a", 9.0)])
    assert read(window, service.page) == about(0.5)
    service.answer([("/a", 3.0)])
    assert read(window, service.page) == about(3.0)


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (b"answers_total 3\n", Reason.EMPTY),
        (b"answer_seconds_total NaN\nanswers_total 3\n", Reason.FORMAT),
        (b"answer_seconds_total -1\nanswers_total 3\n", Reason.FORMAT),
        (b"answer_seconds_total +Inf\nanswers_total 3\n", Reason.FORMAT),
        (b"answer_seconds_total{ 1\nanswers_total 3\n", Reason.FORMAT),
        (
            b"".join(b'answer_seconds_total{route="%d"} 1\n' % n for n in range(1001)),
            Reason.AMBIGUOUS,
        ),
    ],
)
def test_a_page_without_counters(page: bytes, reason: Reason) -> None:
    with pytest.raises(SourceError) as error:
        read(CounterWindow(), page)
    assert error.value.reason is reason
