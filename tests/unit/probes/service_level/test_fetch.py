# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP requests to real servers, most of which send invalid or hostile answers."""

import asyncio
from collections.abc import Callable
from pathlib import Path
import socket
import ssl
import subprocess
import threading

import pytest

from controller.cli.main import main
from controller.config.sections.service_sources import (
    Endpoint,
    JsonField,
    MetricLine,
    PrometheusQuery,
    ServiceSource,
)
from controller.core.units import NS_PER_SEC
from controller.probes.service_level.fetch import FetchLoop
from controller.probes.service_level.ledger import SourceError
from controller.probes.service_level.poll import fetch_figure
from tests.support.http.raw_server import CHUNKED, RawHttpServer, ok
from tests.support.waiting import DEADLINE_S

JSON = ok(b'{"p99": 12.5}')


def endpoint(
    url: str,
    *,
    token_file: Path | None = None,
    header_files: tuple[tuple[str, Path], ...] = (),
    ca_file: Path | None = None,
) -> Endpoint:
    return Endpoint(url=url, token_file=token_file, header_files=header_files, ca_file=ca_file)


def service_source(
    source: PrometheusQuery | MetricLine | JsonField, timeout_s: float = DEADLINE_S
) -> ServiceSource:
    return ServiceSource(
        service="web",
        source=source,
        unit_ns=NS_PER_SEC,
        every_ns=NS_PER_SEC,
        timeout_ns=round(timeout_s * NS_PER_SEC),
        max_age_ns=10 * NS_PER_SEC,
    )


def run(source: PrometheusQuery | MetricLine | JsonField, timeout_s: float = DEADLINE_S) -> float:
    loop = FetchLoop()
    try:
        return loop.run_until_complete(fetch_figure(service_source(source, timeout_s)))
    finally:
        loop.close()


def fetch_json(
    server: RawHttpServer,
    timeout_s: float = DEADLINE_S,
    *,
    token_file: Path | None = None,
    tenant_file: Path | None = None,
    ca_file: Path | None = None,
) -> float:
    headers = () if tenant_file is None else (("X-Scope-OrgID", tenant_file),)
    where = endpoint(
        server.url + "/x?y=1", token_file=token_file, header_files=headers, ca_file=ca_file
    )
    return run(JsonField(endpoint=where, pointer="/p99"), timeout_s)


def test_json_field() -> None:
    with RawHttpServer(JSON) as server:
        assert fetch_json(server) == 12.5
    line, *headers = server.requests[0].splitlines()
    assert line == "GET /x?y=1 HTTP/1.1"
    assert f"Host: 127.0.0.1:{server.port}" in headers
    assert "Connection: close" in headers


def test_prometheus_query_is_quoted() -> None:
    body = b'{"data":{"resultType":"scalar","result":[1,"0.5"]}}'
    with RawHttpServer(ok(body)) as server:
        source = PrometheusQuery(endpoint=endpoint(server.url + "/prom/"), query='a{b="c d&e"}')
        assert run(source) == 0.5
    first = server.requests[0].splitlines()[0]
    assert first == "GET /prom/api/v1/query?query=a%7Bb%3D%22c%20d%26e%22%7D HTTP/1.1"


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED + b"8;x=y\r\nload 1.5\r\n1\r\n\n\r\n0\r\nTrailer: z\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nload 1.5\n",
        ok(b"load 1.5\n", "Connection: keep-alive"),
    ],
    ids=["chunked", "until the end", "kept alive"],
)
def test_every_way_to_frame_a_page(answer: bytes) -> None:
    with RawHttpServer(answer) as server:
        assert run(MetricLine(endpoint=endpoint(server.url), metric="load", labels=())) == 1.5


def huge(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
    for _ in range(1 << 14):
        connection.sendall(bytes(1 << 16))


def huge_chunks(connection: socket.socket) -> None:
    connection.sendall(CHUNKED)
    for _ in range(1 << 14):
        connection.sendall(b"10000\r\n" + bytes(1 << 16) + b"\r\n")


def huge_head(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for _ in range(1 << 14):
        connection.sendall(b"A: " + b"a" * 1000 + b"\r\n")


BAD: dict[str, tuple[bytes | Callable[[socket.socket], None], str]] = {
    "500": (b"HTTP/1.1 500 Oops\r\n\r\n", "status"),
    "404": (ok(b"").replace(b"200 OK", b"404 Not Found"), "status"),
    "redirect": (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "redirect"),
    "not http": (b"220 smtp ready\r\n\r\n", "format"),
    "no text": (bytes(range(256)) + b"\r\n\r\n", "format"),
    "nothing": (b"", "connect"),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-", "connect"),
    "half a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{", "connect"),
    "odd chunk": (CHUNKED + b"-1\r\n", "format"),
    "wide chunk": (
        CHUNKED + b"ffffffff\r\n",
        "too-big",
    ),
    "announced too long": (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "too-big"),
    "packed": (ok(b"\x1f\x8b\x08", "Content-Encoding: gzip"), "format"),
    "html": (ok(b"<html>"), "format"),
    "huge": (huge, "too-big"),
    "huge chunks": (huge_chunks, "too-big"),
    "huge head": (huge_head, "too-big"),
    "many headers": (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n", "format"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_answers_give_their_reason(name: str) -> None:
    answer, reason = BAD[name]
    with RawHttpServer(answer) as server, pytest.raises(SourceError) as error:
        fetch_json(server)
    assert error.value.reason == reason, str(error.value)
    assert len(server.requests) == 1  # a redirect was not followed


@pytest.mark.parametrize("manner", ["hang", "drip"])
def test_the_deadline_covers_the_whole_request(manner: str) -> None:
    with RawHttpServer(b"") as server:
        server.answer = getattr(server, manner)
        with pytest.raises(SourceError, match="no answer within 200ms") as error:
            fetch_json(server, timeout_s=0.2)
    assert error.value.reason == "timeout"


def test_a_closed_port_is_a_connect_error() -> None:
    with RawHttpServer(b"") as server:
        pass
    with pytest.raises(SourceError, match="refused") as error:
        fetch_json(server)
    assert error.value.reason == "connect"


def test_a_host_that_does_not_exist() -> None:
    source = JsonField(endpoint=endpoint("http://no-such-host.invalid:1/"), pointer="")
    with pytest.raises(SourceError, match=r"cannot find 'no-such-host.invalid'") as error:
        run(source)
    assert error.value.reason == "connect"


def test_a_name_server_that_hangs_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    released, ended = threading.Event(), threading.Event()

    def hangs(*_: object, **__: object) -> list[object]:
        released.wait(DEADLINE_S)
        ended.set()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    source = JsonField(endpoint=endpoint("http://somewhere.invalid/"), pointer="")
    try:
        with pytest.raises(SourceError, match="no answer within 50ms"):
            run(source, timeout_s=0.05)
        assert not ended.is_set()
    finally:
        released.set()


def test_secrets_are_read_from_files_for_each_request(tmp_path: Path) -> None:
    token, tenant = tmp_path / "token", tmp_path / "tenant"
    token.write_text("first\n")
    tenant.write_text("me")
    with RawHttpServer(JSON) as server:
        fetch_json(server, token_file=token, tenant_file=tenant)
        token.write_text("second\n")
        fetch_json(server, token_file=token, tenant_file=tenant)
    heads = [request.splitlines() for request in server.requests]
    assert "Authorization: Bearer first" in heads[0]
    assert "X-Scope-OrgID: me" in heads[0]
    assert "Authorization: Bearer second" in heads[1]


@pytest.mark.parametrize("content", [b"", b"a\r\nEvil: yes", b"\xff", b"x" * 9000])
def test_a_secret_that_is_no_valid_header_is_refused(tmp_path: Path, content: bytes) -> None:
    token = tmp_path / "token"
    token.write_bytes(content)
    with RawHttpServer(JSON) as server, pytest.raises(SourceError) as error:
        fetch_json(server, token_file=token)
    assert error.value.reason == "secret"
    assert server.requests == []
    with RawHttpServer(JSON) as server, pytest.raises(SourceError, match="No such file"):
        fetch_json(server, token_file=tmp_path / "none")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a self-signed certificate for 127.0.0.1 and its key."""
    home = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", home / "key.pem", "-out", home / "cert.pem", "-days", "2"),
            *("-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return home


def test_tls_is_verified(authority: Path, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "cert.pem", authority / "key.pem")
    with RawHttpServer(JSON, tls=context) as server:
        assert fetch_json(server, ca_file=authority / "cert.pem") == 12.5
        with pytest.raises(SourceError, match="self-signed") as error:
            fetch_json(server)
        assert error.value.reason == "tls"
        (tmp_path / "empty.pem").write_text("")
        with pytest.raises(SourceError) as error:
            fetch_json(server, ca_file=tmp_path / "empty.pem")
        assert error.value.reason == "tls"


def test_check_polls_every_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    with RawHttpServer(JSON) as server, RawHttpServer(b"HTTP/1.1 500 Oops\r\n\r\n") as bad:
        workloads = "".join(
            f"  - {{name: {name}, cgroup: /{name}, class: latency-sensitive}}\n"
            for name in ("web", "shop", "queue")
        )
        good = (
            f"workloads:\n{workloads}service_level:\n  services:\n"
            f'    web: {{json: {{url: "{server.url}", pointer: /p99}}, unit: ms}}\n'
            "    queue: {push: {}}\n"
        )
        config.write_text(good)
        assert main(["check", "--ask", "--config", str(config)]) == 0
        assert capsys.readouterr().out == "web: 12.5ms\nqueue: a push source, not polled\n"
        config.write_text(good + f'    shop: {{json: {{url: "{bad.url}", pointer: /p99}}}}\n')
        assert main(["check", "--ask", "--config", str(config)]) == 1
        assert "shop: HTTP status 500\n" in capsys.readouterr().out
        pods = f"{good}  pods: {{default: {{port: 80, metric: x}}}}\nkubernetes: {{node: n}}\n"
        config.write_text(pods)
        assert main(["check", "--ask", "--config", str(config)]) == 0
        assert "pods with profile default: asked by the agent" in capsys.readouterr().out


def test_many_requests_at_once_need_one_thread() -> None:
    async def fetch_often(source: ServiceSource, count: int) -> list[object]:
        fetches = (fetch_figure(source) for _ in range(count))
        return list(await asyncio.gather(*fetches, return_exceptions=True))

    # The server answers when all have asked.
    all_asked = threading.Barrier(50)

    def answer(connection: socket.socket) -> None:
        all_asked.wait(DEADLINE_S)
        connection.sendall(JSON)

    with RawHttpServer(answer) as server:
        source = service_source(JsonField(endpoint=endpoint(server.url), pointer="/p99"))
        loop = FetchLoop()
        answers = loop.run_until_complete(fetch_often(source, 50))
        loop.close()
    assert answers == [12.5] * 50
