# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Messages to the service manager that started this process, such as systemd.

They are datagrams to the socket in ``NOTIFY_SOCKET``, see sd_notify(3). Standard library only,
because the guardian imports this module; the Python package for it would be larger.
"""

import contextlib
import os
import socket

__all__ = ("ServiceManager",)


class ServiceManager:
    """Tells the service manager when the service is ready, alive and stopping.

    Without a service manager nothing is sent. A message that cannot be sent is lost: the manager
    then does what it does without it. Nothing raises an ``OSError``.

    :param address: of the socket; ``@`` stands for the NUL of an abstract one. Empty: no manager.
    :param watchdog_s: the manager restarts a service that was not alive for this long; 0: it does
        not watch.
    """

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        # As sd_watchdog_enabled(3) asks: at least twice in that time, here four times.
        self._interval_s = watchdog_s / 4
        self._due_s = 0.0
        self._is_ready = False

    @classmethod
    def of_environment(cls) -> "ServiceManager":
        """Return that of the environment, whose variables are removed: children do not speak."""
        address = os.environ.pop("NOTIFY_SOCKET", "")
        watchdog, pid = (os.environ.pop(f"WATCHDOG_{name}", "") for name in ("USEC", "PID"))
        is_watched = watchdog.isdecimal() and pid in ("", str(os.getpid()))
        return cls(address, int(watchdog) / 1e6 if is_watched else 0.0)

    def ready(self) -> None:
        """Say that the start is over; once."""
        if not self._is_ready:
            self._is_ready = True
            self._send(b"READY=1")

    def alive(self, now_s: float) -> None:
        """Say that the service works at *now_s* (monotonic), unless it did a moment ago."""
        if self._interval_s and now_s >= self._due_s:
            self._due_s = now_s + self._interval_s
            self._send(b"WATCHDOG=1")

    def stopping(self) -> None:
        """Say that the service is ending."""
        self._send(b"STOPPING=1")

    def _send(self, message: bytes) -> None:
        if not self._address:
            return
        # A socket for each message: there are few, and the guardian keeps no descriptor. A full
        # queue must not delay the guardian.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as end,
        ):
            end.sendto(message, self._address)
