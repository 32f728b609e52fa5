# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pushes by processes of several users."""

import errno
import logging
import os
from pathlib import Path
import socket
import stat
import tempfile
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from controller.config.sections.service_sources import ServiceLevelConfig
from controller.core.units import NS_PER_MS
from controller.probes.service_level import runner
from controller.probes.service_level.collector import ServiceLevels
from controller.probes.service_level.push import PushSocket
from tests.support.needs import needs_root
from tests.support.waiting import eventually
from tests.unit.probes.service_level.collecting import NOBODY, pushes, reading, send, state

pytestmark = needs_root("to send as several users")


def test_a_figure_is_taken_in_its_unit(levels: ServiceLevels, place: Path) -> None:
    assert reading(levels, "web") == ("web", None, None)
    before_ns = time.monotonic_ns()
    send(place, b"web 12.5\n")
    eventually("the figure", lambda: reading(levels, "web").value == 12.5e6)
    age_ns = reading(levels, "web").age_ns
    assert age_ns is not None and 0 < age_ns < time.monotonic_ns() - before_ns
    send(place, b"web nan")
    eventually("the figure", lambda: reading(levels, "web").value is None)
    assert reading(levels, "web").age_ns is not None  # an answer of an idle service


def test_users_push_for_their_own_services(levels: ServiceLevels, place: Path) -> None:
    send(place, b"shop cart 3", uid=NOBODY)
    eventually("the figure", lambda: reading(levels, "shop cart").value == 3e6)
    send(place, b"web 1", uid=NOBODY)
    send(place, b"shop cart 4")
    eventually("the refusals", lambda: levels.refused_pushes["forbidden"] == 2)
    assert reading(levels, "web").value is None
    assert reading(levels, "shop cart").value == 3e6


def test_a_user_of_no_service_cannot_fill_the_queue(levels: ServiceLevels, place: Path) -> None:
    with pytest.raises(AssertionError):
        send(place, b"web 1", uid=NOBODY - 1)
    send(place, b"shop cart 3", uid=NOBODY)
    eventually("the figure", lambda: reading(levels, "shop cart").value == 3e6)
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
    eventually("the figure", lambda: reading(levels, "shop").value == 3e6)
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
    eventually("the figure", lambda: state(levels, "old").age_ns is not None)
    assert reading(levels, "old") == ("old", None, None)
    assert state(levels, "old").problem == "no answer for more than 1ns"


def test_hostile_pushes_are_counted_and_logged_once(
    levels: ServiceLevels, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [b"", b"web", b"\xff\xfe 1", b"web 1" + b" " * 600, b"\x1b[31m\nevil 1", b"evil 2"]
    with caplog.at_level(logging.WARNING):
        send(place, *bad)
        eventually("the refusals", lambda: sum(levels.refused_pushes.values()) == len(bad))
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
        eventually("the errors", lambda: state(levels, "web").errors["format"] == 20)
    assert [record.getMessage() for record in caplog.records] == [
        f"{place}: a push for web: 'x0' is not a finite number (logged once a minute at most)"
    ]


@pytest.mark.parametrize("figure", [b"inf", b"1e999", b"0x10", b"1_0", b"--1", b"9" * 200])
def test_a_figure_that_is_no_number_is_refused(
    levels: ServiceLevels, place: Path, figure: bytes
) -> None:
    send(place, b"web " + figure)
    eventually("the errors", lambda: state(levels, "web").errors["format"] == 1)
    assert reading(levels, "web").value is None


@pytest.mark.parametrize("figure", [b"1e308", b"-1e308", b"-1", b"-0.001"])
def test_a_figure_that_is_no_time_is_refused(
    levels: ServiceLevels, place: Path, figure: bytes
) -> None:
    send(place, b"web " + figure)
    eventually("the errors", lambda: state(levels, "web").errors["format"] == 1)
    assert reading(levels, "web") == ("web", None, None)


def test_attached_descriptors_do_not_become_ours(levels: ServiceLevels, place: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        tempfile.TemporaryFile() as file,
    ):
        sender.connect(str(place))
        for _ in range(8):
            socket.send_fds(sender, [b"web 7"], [file.fileno()] * 8)
        eventually("the figure", lambda: reading(levels, "web").value == 7e6)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_flood_is_slowed_down(
    levels: ServiceLevels, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 datagrams are read in a tenth of a second; the kernel's queue fills, the sender blocks."""
    clock_s = [100.0]
    clock = SimpleNamespace(monotonic=lambda: clock_s[0], monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr("controller.probes.service_level.push.time", clock)

    def flood() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(place))
            for _ in range(500):
                sender.send(b"evil 1")

    def refused() -> int:
        return levels.refused_pushes["unknown"]

    def wait_for(count: int) -> None:
        eventually(f"{count} datagrams", lambda: refused() >= count)
        assert refused() == count

    sender = threading.Thread(target=flood)
    sender.start()
    for count in (64, 128, 192):
        wait_for(count)
        clock_s[0] += 0.11
    monkeypatch.undo()
    sender.join()
    send(place, b"web 1")
    eventually("the figure", lambda: reading(levels, "web").value == 1e6)
    assert refused() == 500


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
    eventually("the figure", lambda: reading(levels, "web").value == 1e6)
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
    tries = []

    def listen(*arguments: Any) -> PushSocket:
        tries.append(arguments)
        return PushSocket(*arguments)

    monkeypatch.setattr(runner, "PushSocket", listen)
    second = ServiceLevels(config)
    try:
        eventually("more attempts", lambda: len(tries) >= 5)
        assert caplog.text.count("tried again every") == 1
        levels.close()
        eventually("the socket", place.is_socket)
        send(place, b"web 2")
        eventually("the figure", lambda: reading(second, "web").value == 2 * NS_PER_MS)
    finally:
        second.close()
    assert not place.exists()


def test_the_path_is_free_before_nobody_listens(place: Path) -> None:
    """Otherwise another process has the path already when it is removed."""
    place.parent.mkdir()
    push = PushSocket(ServiceLevelConfig(socket=place, group=None, sources=()), {})
    listener, found = push._socket, []

    def close() -> None:
        found.append(place.exists())
        listener.close()

    push._socket = SimpleNamespace(close=close)  # type: ignore[assignment]
    push.close()
    assert found == [False]


def test_a_file_that_is_no_socket_is_kept(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    place.parent.mkdir()
    place.write_text("precious")
    levels = ServiceLevels(ServiceLevelConfig(socket=place, group=None, sources=(pushes("web"),)))
    assert "Address already in use" in caplog.text
    levels.close()
    assert place.read_text() == "precious"
