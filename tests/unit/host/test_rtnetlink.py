# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Dumps that the kernel breaks off, and a host that is short of threads."""

import errno
import os
import struct
import threading

import pytest

from controller.host import rtnetlink
from controller.host.rtnetlink import RouteSocket

_HEADER = struct.Struct("=IHHII")
_ERROR = 2


class Socket:
    """A socket whose kernel answers each request with the error *code*."""

    def __init__(self, code: int) -> None:
        self._code = code
        self._sequence = 0

    def settimeout(self, seconds: float) -> None:
        pass

    def send(self, data: bytes) -> None:
        self._sequence = _HEADER.unpack_from(data)[3]

    def recv(self, most: int) -> bytes:
        body = struct.pack("=i", -self._code) + bytes(_HEADER.size)
        return _HEADER.pack(_HEADER.size + len(body), _ERROR, 0, self._sequence, 0) + body


@pytest.mark.parametrize("code", [errno.ENODEV, errno.ENOENT, 0])
def test_what_was_removed_has_nothing(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(rtnetlink, "_open", lambda: Socket(code))
    assert list(RouteSocket().dump(38, bytes(20))) == []


@pytest.mark.parametrize("code", [errno.ENOBUFS, errno.ENOMEM, errno.EPERM])
def test_a_failure_is_not_nothing(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(rtnetlink, "_open", lambda: Socket(code))
    with pytest.raises(OSError, match=os.strerror(code)):
        list(RouteSocket().dump(38, bytes(20)))


def test_a_host_without_threads_is_short_of_a_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with open("/proc/self/ns/net") as netns, pytest.raises(OSError, match="no thread") as found:
        RouteSocket(netns.fileno())
    assert found.value.errno == errno.EAGAIN
