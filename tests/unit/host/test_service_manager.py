# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Messages to a service manager, read from a socket like that of systemd."""

from collections.abc import Iterator
import os
from pathlib import Path
import re
import socket

import pytest

from controller.agent.guardian import Limits
from controller.host.service_manager import ServiceManager

UNIT = Path(__file__).parents[3] / "deploy" / "systemd" / "sweetpoint.service"


@pytest.fixture(params=["path", "abstract"])
def socket_of_manager(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[str, socket.socket]]:
    name = str(tmp_path / "notify") if request.param == "path" else f"@sweetpoint-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(name.replace("@", "\0"))
        end.setblocking(False)
        yield name, end


def received(end: socket.socket) -> list[bytes]:
    messages = []
    while True:
        try:
            messages.append(end.recv(100))
        except BlockingIOError:
            return messages


def test_messages_arrive(
    socket_of_manager: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, end = socket_of_manager
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    manager = ServiceManager.of_environment()
    assert "NOTIFY_SOCKET" not in os.environ
    for now_s in (0.0, 1.0, 14.9, 15.0, 16.0):
        manager.ready()
        manager.alive(now_s)
    manager.stopping()
    assert received(end) == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"STOPPING=1"]


@pytest.mark.parametrize(
    ("usec", "pid"), [("", ""), ("0", ""), ("60000000", "1"), ("soon", ""), ("-5", "")]
)
def test_without_a_watchdog_nothing_is_said_of_it(
    usec: str,
    pid: str,
    socket_of_manager: tuple[str, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, end = socket_of_manager
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.setenv("WATCHDOG_PID", pid)
    ServiceManager.of_environment().alive(1.0)
    assert received(end) == []


@pytest.mark.parametrize("address", ["", "/nowhere/notify", "@nobody-listens", "/" + "x" * 200])
def test_a_message_that_cannot_be_sent_is_lost(address: str) -> None:
    ServiceManager(address, 60.0).ready()


def test_a_full_queue_does_not_delay(socket_of_manager: tuple[str, socket.socket]) -> None:
    manager = ServiceManager(socket_of_manager[0], 1.0)
    for number in range(2000):
        manager.alive(float(number))
    assert 0 < len(received(socket_of_manager[1])) < 2000


def test_the_limits_of_the_unit_are_longer_than_those_of_the_guardian() -> None:
    unit = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
    limits = Limits()
    assert unit["Type"] == "notify"
    restore_s = limits.restores * (limits.restore_s + 1)
    longest_wait_s = limits.backoff_s * 2 ** (limits.quick_deaths - 2)
    assert float(unit["WatchdogSec"]) > restore_s + longest_wait_s + 60 / 4
    assert float(unit["TimeoutStartSec"]) > restore_s + limits.start_s
