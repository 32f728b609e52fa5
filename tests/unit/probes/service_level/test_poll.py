# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Figures from pages, and from a real Prometheus server that scrapes a page of the test."""

from collections.abc import Iterator
import math
from pathlib import Path
import subprocess

import pytest

from controller.config.sections.service_sources import (
    Endpoint,
    MetricLine,
    PrometheusQuery,
    ServiceSource,
)
from controller.core.units import NS_PER_SEC
from controller.demo.programs import free_port
from controller.probes.service_level.fetch import FetchLoop
from controller.probes.service_level.ledger import SourceError
from controller.probes.service_level.poll import Pace, Windows, fetch_all, fetch_figure
from tests.support.http.raw_server import RawHttpServer, ok
from tests.support.needs import needs_program
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = needs_program("prometheus")

PAGE = b"""\
request_seconds{route="/"} 0.0125
request_seconds{route="/slow"} 2
idle NaN
# TYPE answer_seconds histogram
answer_seconds_bucket{le="0.01",route="/"} 70
answer_seconds_bucket{le="0.05",route="/"} 91
answer_seconds_bucket{le="0.2",route="/"} 98
answer_seconds_bucket{le="+Inf",route="/"} 100
answer_seconds_bucket{le="0.01",route="/slow"} 0
answer_seconds_bucket{le="0.05",route="/slow"} 3
answer_seconds_bucket{le="0.2",route="/slow"} 11
answer_seconds_bucket{le="+Inf",route="/slow"} 11
"""
LATER = PAGE.replace(b" 91\n", b" 93\n").replace(b" 98\n", b" 110\n").replace(b" 100\n", b" 112\n")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the server, which has scraped the page once."""
    home = tmp_path_factory.mktemp("prometheus")
    address = f"127.0.0.1:{free_port()}"
    with RawHttpServer(ok(PAGE, "Content-Type: text/plain")) as page:
        (home / "config.yaml").write_text(
            "scrape_configs:\n"
            "  - job_name: page\n"
            "    scrape_interval: 1s\n"
            f"    static_configs: [{{targets: ['127.0.0.1:{page.port}']}}]\n"
        )
        command = ["prometheus", f"--config.file={home}/config.yaml"]
        command += [f"--storage.tsdb.path={home}/data", f"--web.listen-address={address}"]
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield scraped(f"http://{address}", process, home / "log")
        finally:
            process.terminate()
            process.wait()


def scraped(url: str, process: subprocess.Popen[bytes], log: Path) -> str:
    """Return *url* when its server, *process*, has scraped the page."""

    def up() -> bool:
        assert process.poll() is None, log.read_text()
        return isinstance(query_once(url, "up == 1"), str)

    eventually("the first scrape", up)
    return url


def figure(source: PrometheusQuery | MetricLine, unit_ns: int | None) -> ServiceSource:
    return ServiceSource(
        service="web",
        source=source,
        unit_ns=unit_ns,
        every_ns=NS_PER_SEC,
        timeout_ns=round(DEADLINE_S) * NS_PER_SEC,
        max_age_ns=10 * NS_PER_SEC,
    )


def at(url: str) -> Endpoint:
    return Endpoint(url=url, token_file=None, header_files=(), ca_file=None)


def query_once(url: str, query: str, unit_ns: int | None = NS_PER_SEC) -> str | SourceError:
    source = PrometheusQuery(endpoint=at(url), query=query)
    ((_, answer),) = fetch_all([figure(source, unit_ns)])
    return answer


def histogram(url: str, part: float, *labels: tuple[str, str]) -> ServiceSource:
    line = MetricLine(endpoint=at(url), metric="answer_seconds", labels=labels, quantile=part)
    return figure(line, None)


@pytest.mark.parametrize("part", [0.01, 0.5, 0.63, 0.8, 0.9, 0.98, 0.99, 0.999])
def test_a_quantile_of_a_page_is_that_of_prometheus(prometheus: str, part: float) -> None:
    with RawHttpServer(ok(PAGE, "Content-Type: text/plain")) as page:
        url = f"http://127.0.0.1:{page.port}/metrics"
        both, slow = histogram(url, part), histogram(url, part, ("route", "/slow"))
        answers = [answer for _, answer in fetch_all([both, slow])]
    of_both = f"histogram_quantile({part}, sum(answer_seconds_bucket) by (le))"
    of_slow = f'histogram_quantile({part}, answer_seconds_bucket{{route="/slow"}})'
    assert answers == [query_once(prometheus, query, None) for query in (of_both, of_slow)]


def test_a_quantile_is_of_the_requests_between_two_pages() -> None:
    window, loop = Windows(), FetchLoop()
    figures = []
    try:
        for text in (PAGE, LATER, LATER):
            with RawHttpServer(ok(text, "Content-Type: text/plain")) as page:
                source = histogram(f"http://127.0.0.1:{page.port}/metrics", 0.5)
                figures.append(loop.run_until_complete(fetch_figure(source, window)))
    finally:
        loop.close()
    # Two requests up to 50 ms, ten up to 200 ms: the fourth of the ten is in the middle.
    assert figures == pytest.approx([math.nan, 0.11, math.nan], nan_ok=True)


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ('request_seconds{route="/"}', "12.5ms"),
        ("max(request_seconds)", "2s"),
        ("scalar(max(request_seconds)) / 2", "1s"),
        ("max(request_seconds) and on() (time() - timestamp(request_seconds) < 300)", "2s"),
        ("idle", "idle"),
        ("0 / 0", "idle"),
    ],
)
def test_figures(prometheus: str, query: str, answer: str) -> None:
    assert query_once(prometheus, query) == answer


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("request_seconds", "ambiguous"),
        ("no_such_series", "empty"),
        ("request_seconds[1m]", "format"),
        ("1 / 0", "format"),
        ("max(", "status"),
    ],
)
def test_queries_that_give_no_figure(prometheus: str, query: str, reason: str) -> None:
    error = query_once(prometheus, query)
    assert isinstance(error, SourceError)
    assert error.reason == reason


def test_many_pods_are_asked_less_often() -> None:
    pace = Pace()
    assert pace.every_s(5) == 5
    pace.pods = 200
    for _ in range(500):
        pace.note(0.001)
    # 200 requests of a millisecond, at 1 % of a CPU.
    assert pace.every_s(5) == pytest.approx(20, rel=0.01)
    assert pace.every_s(30) == 30
    pace.pods = 10
    assert pace.every_s(5) == 5
