# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is said about a server that does not speak TLS to its end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import json
from pathlib import Path
import socket
import ssl
import struct
import threading

import pytest

from controller.kube.client.api import Api
from controller.kube.client.errors import ApiUnreachable

CLOSED = r"^the other side closed the connection"
RECORD = bytes([22, 3, 3, 0, 200, 2])  # the head of a longer TLS record


def end(_: socket.socket) -> None:
    """Accept and close, as a balancer without a server does."""


def end_in_a_record(connection: socket.socket) -> None:
    connection.sendall(RECORD)


def refuse(connection: socket.socket) -> None:
    connection.sendall(bytes([21, 3, 3, 0, 2, 2, 40]))  # the alert handshake_failure


def speak_http(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextmanager
def hello(then: Callable[[socket.socket], None]) -> Iterator[str]:
    """Run a server that receives the client's first message, does *then*, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                then(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def api_of(url: str, home: Path) -> Api:
    named = {"cluster": {"server": url}, "user": {}, "context": {"cluster": "x", "user": "x"}}
    config = {f"{kind}s": [{"name": "x", kind: value}] for kind, value in named.items()}
    path = home / "kubeconfig"
    path.write_text(json.dumps({"current-context": "x", **config}))
    return Api(path)


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (end, CLOSED),
        (end_in_a_record, CLOSED),
        (refuse, "^TLS: .*HANDSHAKE_FAILURE"),
        (speak_http, "^TLS: WRONG_VERSION_NUMBER"),
        (reset, "^Connection reset by peer"),
    ],
)
def test_a_server_that_breaks_off(
    then: Callable[[socket.socket], None], message: str, tmp_path: Path
) -> None:
    with hello(then) as url, pytest.raises(ApiUnreachable, match=message):
        api_of(url, tmp_path).get("/x")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), CLOSED),
        (ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed (EOF)"), CLOSED),
        (ssl.SSLSyscallError(5, "Some I/O error occurred"), "^TLS: Some I/O error"),
        (ssl.SSLError(), "^TLS: SSLError"),
    ],
)
def test_an_error_without_a_reason_has_a_text(
    monkeypatch: pytest.MonkeyPatch, error: ssl.SSLError, message: str, tmp_path: Path
) -> None:
    def fail(_: ssl.SSLSocket) -> None:
        raise error

    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", fail)
    # What the socket raises depends on the moment at which the other side ends.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ApiUnreachable, match=message):
            api_of(url, tmp_path).get("/x")
