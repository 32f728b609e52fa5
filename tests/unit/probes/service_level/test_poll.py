# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Figures from a real Prometheus server that scrapes a page of the test."""

from collections.abc import Iterator
from pathlib import Path
import subprocess

import pytest

from controller.config.sections.service_level import Endpoint, PrometheusQuery, ServiceSource
from controller.core.units import NS_PER_SEC
from controller.demo.programs import free_port
from controller.probes.service_level.ledger import SourceError
from controller.probes.service_level.poll import fetch_all
from tests.support.http.raw_server import RawHttpServer, ok
from tests.support.needs import needs_program
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = needs_program("prometheus")

PAGE = b"""\
request_seconds{route="/"} 0.0125
request_seconds{route="/slow"} 2
idle NaN
"""


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


def query_once(url: str, query: str) -> str | SourceError:
    endpoint = Endpoint(url=url, token_file=None, header_files=(), ca_file=None)
    source = ServiceSource(
        service="web",
        source=PrometheusQuery(endpoint=endpoint, query=query),
        unit_ns=NS_PER_SEC,
        every_ns=NS_PER_SEC,
        timeout_ns=round(DEADLINE_S) * NS_PER_SEC,
        max_age_ns=10 * NS_PER_SEC,
    )
    ((_, answer),) = fetch_all([source])
    return answer


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
