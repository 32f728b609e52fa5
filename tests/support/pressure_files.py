# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Sockets in place of pressure files, below ``os.open``, and the limits that triggers have.

An urgent byte is POLLPRI, the end of the peer is POLLHUP, and what was written can be read.
"""

from collections import Counter
from collections.abc import Mapping
import os
import select
import socket

import pytest

from controller.core.looks import PressureLimit
from controller.core.model import CgroupId, IndicatorName
from controller.core.units import NS_PER_SEC

__all__ = ("PressureFiles", "allowing")


def allowing(
    points: Mapping[IndicatorName, float],
    *cgroups: CgroupId,
    window_ns: int = 2 * NS_PER_SEC,
) -> tuple[PressureLimit, ...]:
    """Return the limits of *cgroups* at the sweet *points*."""
    return tuple(
        PressureLimit(cgroup, name, point, window_ns)
        for cgroup in cgroups
        for name, point in points.items()
    )


class PressureFiles:
    """Files named ``*.pressure``, by the end of their path. Others are opened as always.

    ``refusals`` are the errors with which an open fails, ``opened_by_name`` counts those that did
    not fail.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self._peers: dict[str, socket.socket | None] = dict.fromkeys(names)
        self._really_open = os.open
        self.refusals: dict[str, int] = {}
        self.opened_by_name: Counter[str] = Counter()
        monkeypatch.setattr(os, "open", self._open)

    def _open(self, path: str, flags: int, *rest: int) -> int:
        if not (str(path).endswith(".pressure") and flags & os.O_RDWR):
            return self._really_open(path, flags, *rest)
        name = "/".join(str(path).rsplit("/", 2)[1:])
        if name not in self._peers:
            raise FileNotFoundError(path)
        if name in self.refusals:
            raise OSError(self.refusals[name], os.strerror(self.refusals[name]))
        self.opened_by_name[name] += 1
        self.close(name)
        ours, peer = socket.socketpair()
        self._peers[name] = peer
        return ours.detach()

    @property
    def opened(self) -> int:
        """How many files were opened."""
        return self.opened_by_name.total()

    def close_all(self) -> None:
        """End all files."""
        for name in self._peers:
            self.close(name)

    def text(self, name: str) -> str:
        """Return what was written to the file since it was opened."""
        return self._peer(name).recv(100).decode()

    def fire(self, name: str) -> None:
        """Let the kernel tell."""
        self._peer(name).send(b"!", socket.MSG_OOB)

    def is_open(self, name: str) -> bool:
        """Whether the file is open."""
        poll = select.poll()
        poll.register(self._peer(name), 0)
        return not poll.poll(0)  # POLLHUP

    def remove(self, name: str) -> None:
        """Remove the cgroup, with its triggers."""
        self.close(name)
        del self._peers[name]

    def close(self, name: str) -> None:
        """End what the file was."""
        peer = self._peers[name]
        if peer is not None:
            peer.close()
        self._peers[name] = None

    def _peer(self, name: str) -> socket.socket:
        peer = self._peers[name]
        assert peer is not None
        return peer
