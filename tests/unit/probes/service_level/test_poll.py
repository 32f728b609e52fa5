# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Figures from a real Prometheus server that scrapes a page of the test."""

from collections.abc import Iterator
import shutil
import socket
import subprocess
import time

import pytest

from controller.config.sections.service_level import Endpoint, PrometheusQuery, ServiceSource
from controller.core.units import NS_PER_SEC
from controller.probes.service_level.ledger import SourceError
from controller.probes.service_level.poll import fetch_all
from tests.support.http.raw_server import RawHttpServer, ok

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed"
)

PAGE = b"""\
request_seconds{route="/"} 0.0125
request_seconds{route="/slow"} 2
idle NaN
"""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the server, which has scraped the page once."""
    home = tmp_path_factory.mktemp("prometheus")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
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
            deadline = time.monotonic() + 30
            while not isinstance(query_once(f"http://{address}", "up == 1"), str):
                assert process.poll() is None, (home / "log").read_text()
                assert time.monotonic() < deadline, (home / "log").read_text()
                time.sleep(0.1)
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait()


def query_once(url: str, query: str) -> str | SourceError:
    endpoint = Endpoint(url=url, token_file=None, header_files=(), ca_file=None)
    source = ServiceSource(
        service="web",
        source=PrometheusQuery(endpoint=endpoint, query=query),
        unit_ns=NS_PER_SEC,
        every_ns=NS_PER_SEC,
        timeout_ns=5 * NS_PER_SEC,
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
        ("max(request_seconds) and on() (time() - timestamp(request_seconds) < 30)", "2s"),
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
