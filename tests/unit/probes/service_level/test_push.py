# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The collector, with pushes by processes of several users and polls of real servers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
import errno
import logging
import os
from pathlib import Path
import shutil
import socket
import stat
import tempfile
import time

import pytest

from controller.config.sections.service_level import (
    Endpoint,
    JsonField,
    Push,
    ServiceLevelConfig,
    ServiceSource,
)
from controller.core.model import ServiceReading
from controller.core.units import NS_PER_MS, NS_PER_SEC
from controller.probes.service_level import runner
from controller.probes.service_level.collector import ServiceLevels
from controller.probes.service_level.ledger import Ledger, Reason, ServiceState, SourceError
from tests.support.http.raw_server import RawHttpServer, ok

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="sends as several users")

NOBODY = 65534


def eventually(check: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not check():
        assert time.monotonic() < deadline, "not within 30 s"
        time.sleep(0.005)


def pushes(service: str, *users: str | int, max_age_ns: int = 60 * NS_PER_SEC) -> ServiceSource:
    return ServiceSource(
        service=service,
        source=Push(users=users or ("root",)),
        unit_ns=NS_PER_MS,
        every_ns=NS_PER_SEC,
        timeout_ns=NS_PER_SEC,
        max_age_ns=max_age_ns,
    )


@pytest.fixture
def place() -> Iterator[Path]:
    """The path of a socket in a directory that every user may enter.

    Short, because the kernel limits paths of sockets to 108 bytes.
    """
    with tempfile.TemporaryDirectory(prefix="sweetpoint-") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "deep" / "socket"


@pytest.fixture
def levels(place: Path) -> Iterator[ServiceLevels]:
    sources = (pushes("web"), pushes("shop cart", NOBODY), pushes("old", max_age_ns=1))
    opened = ServiceLevels(ServiceLevelConfig(socket=place, group=None, sources=sources))
    assert place.is_socket()
    yield opened
    opened.close()


def send(place: Path, *data: bytes, uid: int = 0) -> None:
    """Send datagrams from a process of user *uid*."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgid(uid)
            os.setuid(uid)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                for one in data:
                    sender.sendto(one, str(place))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def reading(levels: ServiceLevels, service: str) -> ServiceReading:
    return next(r for r in levels.poll(time.monotonic_ns()) if r.service == service)


def state(levels: ServiceLevels, service: str) -> ServiceState:
    return next(s for s in levels.states(time.monotonic_ns()) if s.service == service)


def test_a_figure_is_taken_in_its_unit(levels: ServiceLevels, place: Path) -> None:
    assert reading(levels, "web") == ("web", None, None)
    send(place, b"web 12.5\n")
    eventually(lambda: reading(levels, "web").value == 12.5e6)
    age_ns = reading(levels, "web").age_ns
    assert age_ns is not None and age_ns < 10 * NS_PER_SEC
    send(place, b"web nan")
    eventually(lambda: reading(levels, "web").value is None)
    assert reading(levels, "web").age_ns is not None  # an answer of an idle service


def test_users_push_for_their_own_services(levels: ServiceLevels, place: Path) -> None:
    send(place, b"shop cart 3", uid=NOBODY)
    eventually(lambda: reading(levels, "shop cart").value == 3e6)
    send(place, b"web 1", uid=NOBODY)
    send(place, b"shop cart 4")
    eventually(lambda: levels.refused_pushes["forbidden"] == 2)
    assert reading(levels, "web").value is None
    assert reading(levels, "shop cart").value == 3e6


def test_a_user_of_no_service_cannot_fill_the_queue(levels: ServiceLevels, place: Path) -> None:
    with pytest.raises(AssertionError):
        send(place, b"web 1", uid=NOBODY - 1)
    send(place, b"shop cart 3", uid=NOBODY)
    eventually(lambda: reading(levels, "shop cart").value == 3e6)
    assert not any(levels.refused_pushes.values())


def test_without_access_control_lists_all_users_may_write(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "setxattr", refuse)
    sources = (pushes("shop", NOBODY),)
    levels = ServiceLevels(ServiceLevelConfig(socket=place, group=None, sources=sources))
    assert "set service_level.socket_group" in caplog.text
    send(place, b"shop 3", uid=NOBODY)
    eventually(lambda: reading(levels, "shop").value == 3e6)
    levels.close()


def test_only_root_means_that_only_root_can_write(place: Path) -> None:
    levels = ServiceLevels(ServiceLevelConfig(socket=place, group=None, sources=(pushes("web"),)))
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    levels.close()
    assert not place.exists()


def test_a_group_may_write(place: Path) -> None:
    sources = (pushes("web", NOBODY),)
    levels = ServiceLevels(ServiceLevelConfig(socket=place, group="daemon", sources=sources))
    assert stat.S_IMODE(place.stat().st_mode) == 0o660
    assert place.stat().st_gid == 1
    levels.close()


def test_an_old_figure_is_not_used(levels: ServiceLevels, place: Path) -> None:
    send(place, b"old 5")
    eventually(lambda: state(levels, "old").age_ns is not None)
    assert reading(levels, "old") == ("old", None, None)
    assert state(levels, "old").problem == "no answer for more than 1ns"


def test_hostile_pushes_are_counted_and_logged_once(
    levels: ServiceLevels, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [b"", b"web", b"\xff\xfe 1", b"web 1" + b" " * 600, b"\x1b[31m\nevil 1", b"evil 2"]
    with caplog.at_level(logging.WARNING):
        send(place, *bad)
        eventually(lambda: sum(levels.refused_pushes.values()) == len(bad))
    assert {k: v for k, v in levels.refused_pushes.items() if v} == {
        "format": 3,
        "too-big": 1,
        "unknown": 2,
    }
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)


def test_figures_now_good_now_bad_do_not_fill_the_log(
    levels: ServiceLevels, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for number in range(20):
            send(place, b"web 1", b"web x%d" % number)
        eventually(lambda: state(levels, "web").errors["format"] == 20)
    assert [record.getMessage() for record in caplog.records] == [
        f"{place}: a push for web: 'x0' is not a finite number (logged once a minute at most)"
    ]


@pytest.mark.parametrize("figure", [b"inf", b"1e999", b"0x10", b"1_0", b"--1", b"9" * 200])
def test_a_figure_that_is_no_number_is_refused(
    levels: ServiceLevels, place: Path, figure: bytes
) -> None:
    send(place, b"web " + figure)
    eventually(lambda: state(levels, "web").errors["format"] == 1)
    assert reading(levels, "web").value is None


@pytest.mark.parametrize("figure", [b"1e308", b"-1e308", b"-1", b"-0.001"])
def test_a_figure_that_is_no_time_is_refused(
    levels: ServiceLevels, place: Path, figure: bytes
) -> None:
    send(place, b"web " + figure)
    eventually(lambda: state(levels, "web").errors["format"] == 1)
    assert reading(levels, "web") == ("web", None, None)


def test_a_polled_figure_that_is_no_time_is_a_problem(place: Path) -> None:
    with RawHttpServer(ok(b'{"a": -3}')) as server:
        source = replace(polls(server), unit_ns=NS_PER_SEC)
        levels = ServiceLevels(ServiceLevelConfig(socket=place, group=None, sources=(source,)))
        eventually(lambda: state(levels, "web").errors["format"] >= 1)
        assert state(levels, "web").problem == "-3 is no time in the unit of the source"
        assert reading(levels, "web").value is None
        server.answer = ok(b'{"a": 1e305}')
        eventually(lambda: "1e+305" in state(levels, "web").problem)
        levels.close()
        # Numbers that are no times may be negative.
        number = replace(source, unit_ns=None)
        server.answer = ok(b'{"a": -3}')
        levels = ServiceLevels(ServiceLevelConfig(socket=place, group=None, sources=(number,)))
        eventually(lambda: reading(levels, "web").value == -3)
        levels.close()


def test_attached_descriptors_do_not_become_ours(levels: ServiceLevels, place: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        tempfile.TemporaryFile() as file,
    ):
        sender.connect(str(place))
        for _ in range(8):
            socket.send_fds(sender, [b"web 7"], [file.fileno()] * 8)
        eventually(lambda: reading(levels, "web").value == 7e6)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_flood_is_slowed_down(levels: ServiceLevels, place: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(place))
        started = time.monotonic()
        for _ in range(500):
            sender.send(b"evil 1")
        sent_s = time.monotonic() - started
    # 64 datagrams are read in a tenth of a second; the kernel's queue fills up and the sender
    # blocks. A slow machine takes longer, so only the lower bound is checked.
    queue = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
    assert sent_s > (500 - queue) // 64 * 0.1 - 0.1
    send(place, b"web 1")
    eventually(lambda: reading(levels, "web").value == 1e6)


def test_a_socket_of_a_killed_agent_is_replaced(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ServiceLevelConfig(socket=place, group=None, sources=(pushes("web"),))
    place.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as killed:
        killed.bind(str(place))
        alive = ServiceLevels(config)
        (message,) = caplog.messages
        assert message.startswith(f"service level: {place}: Address already in use; tried again")
        alive.close()
        assert place.exists()  # it belongs to the other process
    levels = ServiceLevels(config)
    send(place, b"web 1")
    eventually(lambda: reading(levels, "web").value == 1e6)
    levels.close()


def test_a_socket_in_use_is_taken_over_when_it_is_free(
    levels: ServiceLevels,
    place: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``sweetpoint learn`` listens too, and the agent may start meanwhile."""
    monkeypatch.setattr(runner, "_LISTEN_AGAIN_S", 0.01)
    config = ServiceLevelConfig(socket=place, group=None, sources=(pushes("web"),))
    second = ServiceLevels(config)
    try:
        time.sleep(0.1)
        assert caplog.text.count("tried again every") == 1
        levels.close()
        eventually(place.is_socket)
        send(place, b"web 2")
        eventually(lambda: second.poll(time.monotonic_ns())[0].value == 2 * NS_PER_MS)
    finally:
        second.close()
    assert not place.exists()


def test_a_file_that_is_no_socket_is_kept(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    place.parent.mkdir()
    place.write_text("precious")
    levels = ServiceLevels(ServiceLevelConfig(socket=place, group=None, sources=(pushes("web"),)))
    assert "Address already in use" in caplog.text
    levels.close()
    assert place.read_text() == "precious"


def polls(
    server: RawHttpServer, service: str = "web", timeout_ns: int = 10 * NS_PER_SEC
) -> ServiceSource:
    endpoint = Endpoint(url=server.url, token_file=None, header_files=(), ca_file=None)
    return ServiceSource(
        service=service,
        source=JsonField(endpoint=endpoint, pointer="/a"),
        unit_ns=None,
        every_ns=100 * NS_PER_MS,
        timeout_ns=timeout_ns,
        max_age_ns=60 * NS_PER_SEC,
    )


def test_a_change_is_logged_before_it_can_be_read(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger(pushes("web"))
    seen = []

    def read_state(_: logging.LogRecord) -> bool:
        now = ledger.state(0)
        seen.append((now.value, now.errors["status"], now.problem))
        return True

    with caplog.at_level(logging.INFO), caplog.filtering(read_state):
        ledger.failed(SourceError(Reason.STATUS, "HTTP status 503"))
        ledger.answered(3, 0)
    assert seen == [(None, 0, ""), (None, 1, "HTTP status 503")]
    assert (ledger.state(0).value, ledger.state(0).problem) == (3e6, "")


def test_a_source_that_fails_and_recovers(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with RawHttpServer(ok(b'{"a": 3}')) as server:
        config = ServiceLevelConfig(socket=place, group=None, sources=(polls(server),))
        levels = ServiceLevels(config)
        assert not place.exists()  # no service pushes
        eventually(lambda: reading(levels, "web").value == 3)
        server.answer = b"HTTP/1.1 503 Busy\r\n\r\n"
        eventually(lambda: state(levels, "web").errors["status"] >= 2)
        assert reading(levels, "web").value == 3  # still young enough
        assert state(levels, "web").problem == "HTTP status 503"
        server.answer = ok(b'{"a": 4}')
        eventually(lambda: reading(levels, "web").value == 4)
        assert state(levels, "web").problem == ""
        levels.close()
    assert [r.getMessage() for r in caplog.records if r.name.endswith("ledger")] == [
        "service level of web: HTTP status 503",
        "service level of web: answers again",
    ]


def test_a_server_that_hangs_does_not_delay_other_sources(place: Path) -> None:
    with RawHttpServer(b"") as dead, RawHttpServer(ok(b'{"a": 3}')) as server:
        dead.answer = dead.hang
        sources = (polls(dead, "dead", 100 * NS_PER_MS), polls(server))
        levels = ServiceLevels(ServiceLevelConfig(socket=place, group=None, sources=sources))
        eventually(lambda: state(levels, "dead").errors["timeout"] >= 1)
        eventually(lambda: reading(levels, "web").value == 3)
        levels.close()


def test_a_reload_keeps_the_state_of_unchanged_sources(levels: ServiceLevels, place: Path) -> None:
    send(place, b"web 1")
    eventually(lambda: reading(levels, "web").value == 1e6)
    other = place.with_name("other")
    sources = (pushes("web"), pushes("new"))
    levels.reconfigure(ServiceLevelConfig(socket=other, group=None, sources=sources))
    assert reading(levels, "web").value == 1e6
    assert reading(levels, "new").value is None
    assert not place.exists()
    send(other, b"new 2")
    eventually(lambda: reading(levels, "new").value == 2e6)
    levels.reconfigure(None)
    assert levels.poll(0) == ()
    assert not other.exists()
    shutil.rmtree(place.parent)
