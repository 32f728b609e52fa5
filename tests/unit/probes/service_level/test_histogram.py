# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Quantiles of histograms on the pages of the Prometheus client library, against numpy."""

from bisect import bisect_left
import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
from prometheus_client import CollectorRegistry, Histogram, generate_latest
import pytest

from controller.probes.service_level.histogram import HistogramWindow, quantile
from controller.probes.service_level.ledger import Reason, SourceError
from controller.probes.service_level.parse import bucket_counts

BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
TIMES = st.lists(st.floats(0.0001, 2.0), min_size=1, max_size=60)
ROUTES = ("/", "/a")


class Service:
    """Requests by route and their page, as a process of the service has it."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._seconds = Histogram(
            "request_seconds", "", ["route"], registry=self._registry, buckets=BOUNDS
        )

    def answer(self, times: list[float], route: str = "/") -> None:
        for each in times:
            self._seconds.labels(route).observe(each)

    @property
    def page(self) -> bytes:
        return generate_latest(self._registry)


def read(window: HistogramWindow, page: bytes, part: float = 0.9, route: str = "") -> float:
    labels = [("route", route)] if route else []
    return window.update(bucket_counts(page, "request_seconds", labels), part)


def in_bucket_of(value: float, times: list[float], part: float) -> bool:
    """Whether *value* lies in the bucket of the quantile that numpy finds, edges included."""
    exact = float(np.quantile(times, part, method="inverted_cdf"))
    number = bisect_left(BOUNDS, exact)
    if number == len(BOUNDS):
        return value == BOUNDS[-1]
    return (BOUNDS[number - 1] if number else 0.0) <= value <= BOUNDS[number]


@given(before=TIMES, since=TIMES, part=st.floats(0.01, 0.99))
def test_only_requests_since_the_last_page_count(
    before: list[float], since: list[float], part: float
) -> None:
    service, window = Service(), HistogramWindow()
    service.answer(before)
    assert math.isnan(read(window, service.page, part)), "nothing to compare with"
    service.answer(since)
    assert in_bucket_of(read(window, service.page, part), since, part)
    assert math.isnan(read(window, service.page, part)), "no request since then"


@given(before=TIMES, since=TIMES, part=st.floats(0.01, 0.99))
def test_a_restarted_service_counts_from_its_start(
    before: list[float], since: list[float], part: float
) -> None:
    window, first, again = HistogramWindow(), Service(), Service()
    first.answer([*before, *since])  # so that its counts are above those of the next
    read(window, first.page, part)
    again.answer(since)
    found = read(window, again.page, part)
    assert in_bucket_of(found, since, part)


@given(first=TIMES, second=TIMES, part=st.floats(0.01, 0.99))
def test_all_series_count_also_new_ones(
    first: list[float], second: list[float], part: float
) -> None:
    service, window, one = Service(), HistogramWindow(), HistogramWindow()
    service.answer([0.02])
    for each in (window, one):
        read(each, service.page, part, "/" if each is one else "")
    service.answer(first)
    service.answer(second, "/a")
    assert in_bucket_of(read(window, service.page, part), first + second, part)
    assert in_bucket_of(read(one, service.page, part, "/"), first, part)


def test_without_a_page_before_it_is_of_all_requests() -> None:
    service = Service()
    service.answer([0.02] * 90 + [0.7] * 10)
    counts = bucket_counts(service.page, "request_seconds", [])
    # The last tenth of the bucket from 0.5 to 1 s.
    assert quantile(counts.values(), 0.99) == pytest.approx(0.95)
    assert quantile(counts.values(), 0.45) == pytest.approx(0.03)


def test_above_all_bounds_it_is_the_largest_one() -> None:
    service, window = Service(), HistogramWindow()
    service.answer([0.02])
    read(window, service.page)
    service.answer([60.0] * 10)
    assert read(window, service.page) == BOUNDS[-1]


PAGE = """\
a_bucket{le="0.1"} 3
a_bucket{le="+Inf"} 4
b_bucket{le="0.1",x="1"} 3
b_bucket{le="+Inf",x="1"} 4
b_bucket{le="0.2",x="2"} 3
b_bucket{le="+Inf",x="2"} 4
c_bucket{le="0.1"} 3
d_bucket{le="x"} 3
e_bucket{le="0.1"} -1
f_bucket{x="1"} 3
"""
# A native histogram by the Go library in the text format: its buckets are left out.
NATIVE = """\
# TYPE request_seconds histogram
request_seconds_bucket{route="/",le="+Inf"} 1200
request_seconds_sum{route="/"} 14.4
request_seconds_count{route="/"} 1200
"""


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        ("b", Reason.AMBIGUOUS),
        *((metric, Reason.FORMAT) for metric in "cdef"),
        ("none", Reason.EMPTY),
    ],
)
def test_pages_that_have_no_quantile(metric: str, reason: Reason) -> None:
    window = HistogramWindow()
    assert math.isnan(window.update(bucket_counts(PAGE.encode(), "a", []), 0.9))
    with pytest.raises(SourceError) as caught:
        quantile(bucket_counts(PAGE.encode(), metric, []).values(), 0.9)
    assert caught.value.reason is reason


def test_a_native_histogram_gives_an_error_and_no_figure() -> None:
    """Its only bucket has no bound, so that any quantile would be zero."""
    text = "no bounds, as a native histogram; use request_seconds_sum per request_seconds_count"
    with pytest.raises(SourceError, match=text) as caught:
        bucket_counts(NATIVE.encode(), "request_seconds", [])
    assert caught.value.reason is Reason.FORMAT


def test_too_many_buckets_are_refused() -> None:
    page = "".join(f'a_bucket{{le="0.1",x="{n}"}} 1\n' for n in range(1001))
    with pytest.raises(SourceError, match="more than 1000 series"):
        bucket_counts(page.encode(), "a", [])
