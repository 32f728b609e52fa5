# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The figures of known programs, from pages in the form in which each program writes its own.

Names, labels, order and number formats are as in the source or documentation of the program; see
docs/SUPPORT.md. HAProxy also runs here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
import subprocess
import urllib.error
import urllib.request

import pytest

from controller.config.load import load
from controller.config.sections.programs import PROGRAMS
from controller.config.sections.service_sources import PodAddress, ServiceSource
from controller.demo.programs import free_port
from controller.probes.service_level.fetch import FetchLoop
from controller.probes.service_level.ledger import base_value
from controller.probes.service_level.poll import Windows, fetch_all, fetch_figure
from tests.support.http.raw_server import RawHttpServer, ok
from tests.support.needs import needs_program
from tests.support.waiting import eventually

PAGES = Path(__file__).parent / "pages"
# The figure between two pages, in ns. <A> grows by 100 and <B> by 400, and of histograms all of the
# 100 are between the second and the first finite bound.
FIGURES = {
    "envoy": 995_000,
    "grpc-go": 9_950_000,
    "grpc-python": 9_950_000,
    "haproxy": 31_000_000,
    "ingress-nginx": 9_950_000,
    "istio": 995_000,
    "llama-cpp": 250_000_000,
    "nginx-vts": 26_000_000,
    "postgres": 250_000,
    "redis": 250_000,
    "sglang": 3_980_000,
    "spring": 250_000,
    "tgi": 29_095_616,
    "traefik": 250_000,
    "triton": 250_000,
    "vllm": 24_850_000,
}


def source_of(name: str, folder: Path, port: int) -> ServiceSource:
    """Return the source of a pod on this host with the program *name*, at *port*."""
    (folder / "p.yaml").write_text("name: p\nindicators: {service: {sweet_point: 20ms}}\n")
    file = folder / "config.yaml"
    pods = f"{{p: {{program: {name}, port: {port}}}}}"
    file.write_text(f"kubernetes: {{node: n}}\nprofiles: [p.yaml]\nservice_level: {{pods: {pods}}}")
    level = load(file, cpus=4).service_level
    assert level is not None
    return level.pods["p"].source_of(PodAddress("shop", "p", "127.0.0.1"))


def test_every_program_has_a_page() -> None:
    assert FIGURES.keys() == PROGRAMS.keys() == {file.stem for file in PAGES.iterdir()}


@pytest.mark.parametrize("name", FIGURES)
def test_the_figure_between_two_pages(name: str, tmp_path: Path) -> None:
    text = (PAGES / f"{name}.txt").read_text()
    pages = [
        text.replace("<A>", str(a)).replace("<B>", str(b)) for a, b in ((200, 1000), (300, 1400))
    ]
    windows, loop = Windows(), FetchLoop()
    try:
        for page in pages:
            with RawHttpServer(ok(page.encode(), "Content-Type: text/plain")) as server:
                source = source_of(name, tmp_path, server.port)
                figure = loop.run_until_complete(fetch_figure(source, windows))
    finally:
        loop.close()
    assert base_value(source, figure) == pytest.approx(FIGURES[name], rel=1e-6)


HAPROXY = """
global
  maxconn 100
defaults
  mode http
  timeout client 5s
  timeout server 5s
  timeout connect 5s
frontend page
  bind 127.0.0.1:{page}
  http-request use-service prometheus-exporter if {{ path /metrics }}
  default_backend app
backend app
  server one 127.0.0.1:{app}
"""


@contextmanager
def haproxy(folder: Path, app: int) -> Iterator[int]:
    """Run HAProxy in front of the server at port *app* and yield its own port."""
    port, file = free_port(), folder / "haproxy.cfg"
    file.write_text(HAPROXY.format(page=port, app=app))
    process = subprocess.Popen(["haproxy", "-db", "-f", file])
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


@needs_program("haproxy")
def test_the_page_of_a_real_haproxy(tmp_path: Path) -> None:
    with (
        RawHttpServer(ok(b"hello", "Content-Type: text/plain")) as app,
        haproxy(tmp_path, app.port) as port,
    ):
        eventually("a request", lambda: answers(port))
        ((_, answer),) = fetch_all([source_of("haproxy", tmp_path, port)])
    assert isinstance(answer, str) and answer.endswith("s"), answer
