# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pages that are protected by a bearer token, over a real socket; limits of clients and pages."""

from base64 import b64encode
from collections.abc import Iterator
import http.client
import logging
import os
from pathlib import Path
import socket
import threading

import pytest

from controller.config.load import ConfigError, load
from controller.demo.programs import free_port
from controller.telemetry.http import StatusServer
from controller.telemetry.http_limits import (
    Connections,
    CpuTime,
    Pacer,
    Peers,
    TokenError,
    TokenFile,
)
from controller.telemetry.report import PublishedState
from tests.support.waiting import DEADLINE_S, eventually

TOKEN = "a-token.of~16+letters/="
OTHER = "another-token-of-this-length"
NO_TICK = 503


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture
def port(file: Path) -> Iterator[int]:
    number = free_port()
    server = StatusServer(
        PublishedState(), ("127.0.0.1", number), healthy_ns=10**9, token_file=file
    )
    yield number
    server.close()


def get(port: int, page: str, *authorizations: str) -> tuple[int, str, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    connection.putrequest("GET", page)
    for value in authorizations:
        connection.putheader("Authorization", value)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), answer.getheader("WWW-Authenticate")
    connection.close()
    return found


@pytest.mark.parametrize("page", ["/metrics", "/statusz", "/metrics?name[]=x"])
def test_protected_pages_require_the_token(port: int, page: str) -> None:
    assert get(port, page, f"Bearer {TOKEN}")[0] == 200
    assert get(port, page, f"bearer  {TOKEN} ")[0] == 200
    for wrong in (
        (),
        (f"Bearer {TOKEN[:-1]}",),
        (f"Bearer {TOKEN}x",),
        (f"Basic {TOKEN}",),
        (TOKEN,),
        ("Bearer",),
        ("Bearer ",),
        ("Bearer \xff",),
        (f"Bearer {OTHER}", f"Bearer {TOKEN}"),
    ):
        status, text, challenge = get(port, page, *wrong)
        assert (status, text, challenge) == (401, "a bearer token is required\n", "Bearer"), wrong
    assert get(port, f"/metrics?access_token={TOKEN}")[0] == 401


def test_browsers_send_the_token_as_a_password(port: int) -> None:
    def basic(text: str) -> str:
        return f"Basic {b64encode(text.encode()).decode()}"

    status, _, challenge = get(port, "/")
    assert status == 401
    assert challenge is not None
    assert 'Basic realm="sweetpoint"' in challenge
    assert get(port, "/", basic(f"anyone:{TOKEN}"))[0] == 200
    assert get(port, "/statusz", basic(f":{TOKEN}"))[0] == 200
    for wrong in (f"anyone:{TOKEN}x", f"{TOKEN}:", TOKEN, "anyone:", ""):
        assert get(port, "/", basic(wrong))[0] == 401, wrong
    assert get(port, "/", "Basic ====")[0] == 401


@pytest.mark.parametrize("page", ["/healthz", "/readyz"])
def test_probes_require_no_token(port: int, page: str) -> None:
    assert get(port, page)[:2] == (NO_TICK, "no tick yet\n")
    assert get(port, "/nothing")[0] == 404


def test_a_new_token_replaces_the_old_one_at_once(port: int, file: Path) -> None:
    # As kubelet does: another file gets the name.
    new = file.with_name("new")
    new.write_text(OTHER)
    new.rename(file)
    assert get(port, "/metrics", f"Bearer {TOKEN}")[0] == 401
    assert get(port, "/metrics", f"Bearer {OTHER}")[0] == 200


def test_without_a_token_in_the_file_requests_are_refused(
    port: int, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for text in ("", "\n", "short", "two words that are long enough"):
        file.write_text(text)
        assert get(port, "/metrics", "Bearer ")[:2] == (503, "no token is configured\n")
    file.unlink()
    for _ in range(3):
        assert get(port, "/statusz", f"Bearer {TOKEN}")[0] == 503
    assert get(port, "/healthz")[0] == NO_TICK
    file.write_text(TOKEN)
    assert get(port, "/metrics", f"Bearer {TOKEN}")[0] == 200
    lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert len(lines) == 2  # one for invalid contents, one for the missing file
    assert lines[1] == f"http_token_file: {file}: No such file or directory"


def test_the_token_is_in_no_message(
    port: int, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    get(port, "/metrics", f"Bearer {TOKEN}")
    file.write_text(f"{OTHER} and more")
    get(port, "/metrics", f"Bearer {TOKEN}")
    assert caplog.records
    assert TOKEN not in caplog.text and OTHER not in caplog.text


def test_invalid_token_files(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    big = tmp_path / "big"
    big.write_text("x" * 5000)
    for path in (tmp_path, fifo, big, tmp_path / "missing"):
        with pytest.raises(TokenError, match=r"^http_token_file: "):
            TokenFile(path)
        # Without its token the server does not listen at all, and no error reaches its caller.
        published = PublishedState()
        StatusServer(published, ("127.0.0.1", 1), healthy_ns=1, token_file=path).close()
        assert published.http_listen_failures == 1


def test_configuration(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("kubernetes: {}\nhttp_token_file: /etc/token\n")
    assert load(config, cpus=4).http_token_file == Path("/etc/token")
    config.write_text("kubernetes: {}\nhttp_token_file: ../token\n")
    with pytest.raises(ConfigError, match=r"config.yaml:2: http_token_file: must be an absolute"):
        load(config, cpus=4)


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_peer_has_a_burst_and_then_its_rate() -> None:
    clock = Clock()
    peers = Peers(clock)
    assert sum(peers.admit("10.0.0.1") for _ in range(100)) == 40
    assert peers.admit("10.0.0.2")
    for _ in range(50):
        clock.now_s += 0.1
        assert [peers.admit("10.0.0.1") for _ in range(3)] == [True, True, False]
    clock.now_s += 3600
    assert sum(peers.admit("10.0.0.1") for _ in range(100)) == 40


def test_many_peers_take_no_more_memory() -> None:
    clock = Clock()
    peers = Peers(clock)
    for each in range(5000):
        clock.now_s += 0.001
        assert peers.admit(f"10.0.{each // 256}.{each % 256}")
    assert len(peers._paid_s) <= 1024


def pairs(count: int) -> list[tuple[socket.socket, socket.socket]]:
    return [socket.socketpair() for _ in range(count)]


def is_shut(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


def test_connections_of_one_peer_replace_each_other() -> None:
    connections = Connections(Clock())
    other, *flood = pairs(31)
    connections.add(other[1], "10.0.0.2")
    for _, server in flood:
        connections.add(server, "10.0.0.1")
    assert [is_shut(client) for client, _ in flood] == [True] * 14 + [False] * 16
    assert not is_shut(other[0])
    for pair in (other, *flood):
        for each in pair:
            each.close()


def test_a_connection_has_ten_seconds() -> None:
    clock = Clock()
    connections = Connections(clock)
    (early, late) = pairs(2)
    connections.add(early[1], "10.0.0.1")
    clock.now_s += 9
    connections.add(late[1], "10.0.0.1")
    connections.close_late()
    assert not is_shut(early[0])
    clock.now_s += 2
    connections.close_late()
    assert is_shut(early[0]) and not is_shut(late[0])
    connections.remove(early[1])
    for each in (*early, *late):
        each.close()


def test_requests_are_followed_by_a_pause_of_nine_times_their_cpu_time() -> None:
    cpu = CpuTime()
    cpu.spend(0.02)
    cpu.spend(0.5, paid_s=0.49)
    assert cpu.pause_s() == pytest.approx(9 * 0.03)
    assert cpu.pause_s() == 0
    cpu.spend(5)
    assert cpu.pause_s() == 1
    assert cpu.total_s == pytest.approx(5.52)


def test_pages_are_made_one_at_a_time_with_pauses() -> None:
    now_s, cpu_s, cpu_each = 100.0, 0.0, 0.04

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def page() -> float:
        nonlocal now_s, cpu_s
        cpu_s += cpu_each
        now_s += 0.05  # the wait for a tick takes no CPU time
        return now_s

    pacer: Pacer[float] = Pacer(lambda: now_s, lambda: cpu_s, sleep)
    ends = [pacer.make(page) for _ in range(3)]
    assert ends == pytest.approx([100.05, 100.05 + 0.36 + 0.05, 100.05 + 2 * (0.36 + 0.05)])
    cpu_each = 0.5
    assert pacer.make(page) == pytest.approx(100.05 + 3 * (0.36 + 0.05))
    assert pacer.make(page) == pytest.approx(100.05 + 3 * (0.36 + 0.05) + 1.0 + 0.05)


def test_requests_share_a_page_for_a_second_and_longer_while_no_other_can_be_made() -> None:
    now_s, cpu_each, made = 100.0, 0.04, 0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def page() -> int:
        nonlocal made
        made += 1
        return made

    cpu_s = iter(each * cpu_each for each in range(100))
    pacer: Pacer[int] = Pacer(lambda: now_s, lambda: next(cpu_s), sleep)
    assert pacer.make(page, "a") == 1
    assert (pacer.make(page, "a"), now_s) == (1, 100.0)
    assert pacer.make(page, "b") == 2
    assert now_s == pytest.approx(100.36)
    now_s = 101.1
    assert pacer.make(page, "a") == 3
    # In the pause after it, the other one is too old to be fresh, and given again all the same.
    now_s = 101.4
    assert (pacer.make(page, "b"), now_s) == (2, 101.4)
    now_s = 101.5
    assert pacer.make(page, "b") == 4
    now_s = 107.0
    assert pacer.make(page, "a") == 5
    # One that is too old even for that is worth the wait.
    assert pacer.make(page, "b") == 6
    assert now_s == pytest.approx(107.36)
    assert pacer.make(page) == 7


def test_requests_beyond_the_maximum_are_rejected_at_once() -> None:
    pacer: Pacer[bool] = Pacer()
    go = threading.Event()
    made: list[bool | None] = []
    threads = [
        threading.Thread(target=lambda: made.append(pacer.make(lambda: go.wait(DEADLINE_S))))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    eventually("the others are rejected", lambda: made == [None] * 16)
    go.set()
    for thread in threads:
        thread.join()
    assert made == [None] * 16 + [True] * 4
