# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to real HTTP servers that do not behave like an API server."""

import json
from pathlib import Path
import socket
import ssl
import subprocess
import sys
import threading
from typing import Any

import pytest

from controller.kube.client.api import Api, PatchKind, segment
from controller.kube.client.errors import ApiError, ApiUnreachable
from tests.support.http.raw_server import CHUNKED, RawHttpServer, ok, response
from tests.unit.kube.client.answers import (
    SECRET,
    SHORT,
    STATUS,
    Connect,
    abort_watch,
    watch,
)


def test_requests_have_method_path_and_headers(connect: Connect) -> None:
    with RawHttpServer(ok(b'{"a": 1}')) as server:
        api = connect(server)
        assert api.get("/api/v1/nodes/x", {"a": "b&c"}) == {"a": 1}
        api.create("/api/v1/pods", {"kind": "Pod"})
        api.patch("/api/v1/nodes/x", [{"op": "test"}], kind=PatchKind.JSON)
        api.patch("/api/v1/nodes/x", {"spec": None}, kind=PatchKind.STRATEGIC)
        api.delete("/api/v1/pods/x")
    get, create, patch, strategic, delete = server.requests
    assert get.startswith("GET /api/v1/nodes/x?a=b%26c HTTP/1.1\r\n")
    assert f"Authorization: Bearer {SECRET}\r\n" in get
    assert create.startswith("POST /api/v1/pods ")
    assert "Content-Type: application/json\r\n" in create
    assert "Content-Type: application/json-patch+json\r\n" in patch
    assert "Content-Type: application/strategic-merge-patch+json\r\n" in strategic
    assert delete.startswith("DELETE /api/v1/pods/x ")


def test_an_error_has_its_reason_in_one_line(connect: Connect) -> None:
    answer = response(429, json.dumps(STATUS).encode())
    with RawHttpServer(answer) as server, pytest.raises(ApiError) as error:
        connect(server).create("/evict", {})
    assert (error.value.status, error.value.reason) == (429, "TooManyRequests")
    assert error.value.retry_after_s == 10
    assert error.value.causes == ("DisruptionBudget",)
    assert str(error.value).startswith("429 TooManyRequests: Cannot evict pod as it would violate")


@pytest.mark.parametrize(
    ("header", "expected"),
    [("3", 3), ("0", None), ("-1", None), ("1e9", None), ("999999999", 600), ("\u00b2", None)],
)
def test_retry_after(connect: Connect, header: str, expected: float | None) -> None:
    answer = response(503, b"no", f"Retry-After: {header}")
    with RawHttpServer(answer) as server, pytest.raises(ApiError) as error:
        connect(server).get("/x")
    assert error.value.retry_after_s == expected


def test_nothing_is_retried_and_no_redirect_followed(connect: Connect) -> None:
    with RawHttpServer(b"") as other, RawHttpServer(b"") as server:
        for status in (302, 307, 429, 500, 503):
            head = (f"Location: {other.url}/y", "Retry-After: 1")
            server.answer = response(status, b"", *head)
            with pytest.raises(ApiError, match=str(status)):
                connect(server).get("/x")
    assert len(server.requests) == 5
    assert other.requests == []


HOSTILE = {
    "not HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "nothing": b"",
    "half": b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
    "bad chunk": CHUNKED + b"zz\r\n",
    "half a chunk": CHUNKED + b"9\r\n{}\n",
    "not JSON": ok(b"<html>"),
    "not an object": ok(b"[]"),
    "deep": ok(b"[" * 200_000),
    "not text": ok(b'{"a": "\xff\xfe"}'),
    "long head": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n{}",
    "many heads": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n{}",
    "long": b"HTTP/1.1 200 OK\r\n\r\n" + b'{"a": "' + b"x" * (9 << 20),
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
def test_an_invalid_response_counts_as_unreachable(connect: Connect, answer: bytes) -> None:
    with RawHttpServer(answer) as server:
        api = connect(server)
        for ask in (lambda: api.get("/x"), lambda: api.items("/x", {}, id), lambda: watch(api)):
            with pytest.raises(ApiUnreachable) as error:
                ask()
            assert "\n" not in str(error.value)
            assert SECRET not in str(error.value)


def test_a_request_without_a_response_ends_in_time(connect: Connect) -> None:
    def slow_body(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        server.drip(connection)

    with RawHttpServer(b"") as server:
        api = connect(server, SHORT)
        for answer in (server.hang, server.drip, slow_body):
            server.answer = answer
            for ask in (lambda: api.get("/x"), lambda: api.items("/x", {}, id)):
                with pytest.raises(ApiUnreachable, match="no answer"):
                    ask()
        for answer in (server.hang, server.drip):
            server.answer = answer
            with pytest.raises(ApiUnreachable, match="no answer"):
                watch(api)
        with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts no connection
            server.port = silent.getsockname()[1]
            with pytest.raises(ApiUnreachable, match="no answer"):
                connect(server, SHORT).get("/x")
    with pytest.raises(ApiUnreachable, match="refused"):
        connect(server).get("/x")


def test_a_list_is_read_object_by_object(connect: Connect) -> None:
    items = [{"number": number, "text": "ü" * number} for number in range(500)]
    whole = {"metadata": {"resourceVersion": "77"}, "items": items}
    found: list[dict[str, Any]] = []
    with RawHttpServer(ok(json.dumps(whole).encode())) as server:
        assert connect(server).items("/x", {"limit": "1"}, found.append) == "77"
        assert found == items
        server.answer = ok(b'{"items": [], "metadata": {"resourceVersion": 7}}')
        with pytest.raises(ApiUnreachable, match="resourceVersion"):
            connect(server).items("/x", {}, found.append)


@pytest.mark.parametrize("place", ["before the answer", "in the middle"])
def test_another_thread_can_abort_a_request(connect: Connect, place: str) -> None:
    def middle(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        server.hang(connection)

    with RawHttpServer(b"") as server:
        server.answer = middle if place == "in the middle" else server.hang
        assert abort_watch(connect(server)) == ["aborted by the agent"]


def test_several_threads_at_a_time(connect: Connect) -> None:
    found: list[Any] = []
    with RawHttpServer(ok(b'{"a": 1}')) as server:
        api = connect(server)

        def ask() -> None:
            found.extend(api.get("/x")["a"] for _ in range(20))

        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [1] * 100


def test_a_new_token_is_used_after_the_old_one_was_refused(
    connect: Connect, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with RawHttpServer(ok(b"{}")) as server:
        api = connect(server, tokenFile=str(token))
        api.get("/x")
        token.write_text("second")
        server.answer = response(401, b'{"reason": "Unauthorized", "message": "expired"}')
        with pytest.raises(ApiError, match="401 Unauthorized: expired"):
            api.get("/x")
        server.answer = ok(b"{}")
        api.get("/x")
    sent = [head.split("Authorization: Bearer ")[1].split("\r\n")[0] for head in server.requests]
    assert sent == ["first", "first", "second"]


def test_an_unauthorized_request_has_the_possible_reasons(connect: Connect) -> None:
    body = b'{"reason": "Unauthorized", "message": "Unauthorized"}'
    with RawHttpServer(response(401, body)) as server:
        with pytest.raises(ApiError, match="does not accept the token: it expired") as error:
            connect(server).get("/x")
        assert error.value.message.endswith("with every attempt")
        server.answer = response(401, b"no such user")  # a specific message is kept
        with pytest.raises(ApiError, match="no such user"):
            connect(server).get("/x")


@pytest.mark.parametrize("more", [b"\r\nEvil: yes", b"\xff"])
def test_a_token_that_is_no_valid_header_is_neither_sent_nor_shown(
    connect: Connect, tmp_path: Path, more: bytes
) -> None:
    (tmp_path / "token").write_bytes(SECRET.encode() + more)
    with RawHttpServer(ok(b"{}")) as server, pytest.raises(ApiUnreachable) as error:
        connect(server, tokenFile=str(tmp_path / "token")).get("/x")
    assert SECRET not in str(error.value)
    assert server.requests == []


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "[]",
        "{",
        f"users: [{SECRET}]",
        f"token: {SECRET}\n\tb",
        f'{{"current-context": "x", "contexts": "{SECRET}"}}',
        '{"current-context": "x", "contexts": [{"name": "x"}]}',
    ],
)
def test_a_bad_kubeconfig_counts_as_unreachable(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    api = Api(path)
    for _ in range(2):
        with pytest.raises(ApiUnreachable, match="kubeconfig") as error:
            api.get("/x")
        assert SECRET not in str(error.value)


def test_the_service_account_is_missing_outside_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ApiUnreachable, match="in-cluster"):
        Api().get("/x")


def test_tls_is_verified_and_a_new_authority_is_used_at_once(
    connect: Connect, tmp_path: Path
) -> None:
    for name in ("old", "new"):
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
                *("ec_paramgen_curve:P-256", "-nodes", "-keyout", tmp_path / f"{name}.key"),
                *("-out", tmp_path / f"{name}.crt", "-days", "2", "-subj", f"/CN={name}"),
                *("-addext", "subjectAltName=IP:127.0.0.1"),
            ],
            check=True,
            capture_output=True,
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "new.crt", tmp_path / "new.key")
    authority = tmp_path / "ca.crt"
    authority.write_bytes((tmp_path / "old.crt").read_bytes())
    with RawHttpServer(ok(b"{}"), tls=context) as server:
        api = connect(server, **{"certificate-authority": str(authority)})
        with pytest.raises(ApiUnreachable, match=r"TLS: .*self-signed.*authority"):
            api.get("/x")
        assert server.requests == []
        authority.write_bytes((tmp_path / "new.crt").read_bytes())
        assert api.get("/x") == {}
        server.answer = server.hang
        assert abort_watch(api) == ["aborted by the agent"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "a\0b", "x" * 254, "../../x"])
def test_a_name_that_cannot_be_a_segment_of_a_path(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a name"):
        segment(name)


def test_a_segment_is_quoted() -> None:
    assert segment("web-1.x") == "web-1.x"
    assert segment("a?b#c%2f \n") == "a%3Fb%23c%252f%20%0A"


def test_the_kubernetes_package_is_not_imported_outside_a_cluster() -> None:
    code = (
        "import sys, controller.agent.agent, controller.kube.client.worker\n"
        "import controller.kube.pod_watcher\n"
        "sys.exit('kubernetes' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
