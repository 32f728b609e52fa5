# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""An open-loop HTTP/1.1 load generator for the loopback, as a process of its own.

Requests follow an absolute schedule that does not depend on the answers. They are sent on
keep-alive connections, one at a time on each. If no connection is free a request waits, and the
wait is part of its latency. One thread with epoll and one timer serves all connections, which
keeps the cost of a request at some tens of microseconds. The generator runs outside the cgroups
under test and, if permitted, as a real-time task, so that latencies contain the waits of the
service and not those of the generator.

Output: JSON lines. The first has the parameters of the run, the next ones one second of the
schedule each, as soon as no request of that second is pending; the last has the end time.
"""

import argparse
from collections import deque
from collections.abc import Iterator
import ctypes
import gc
import json
import os
from pathlib import Path
import random
import select
import signal
import socket
import sys
import time
from typing import TextIO

from controller.core.units import NS_PER_MS, NS_PER_SEC
from controller.demo.ledger import Ledger, SecondOfLoad
from controller.host.facts import die_with_parent

__all__ = ("Generator", "arrivals", "main")

# Far above the latency of a local service, far below the length of a phase.
TIMEOUT_S = 5.0
SWEEP_NS = 100 * NS_PER_MS
REQUEST = b"GET /%s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
TFD_TIMER_ABSTIME = 1  # uapi/linux/timerfd.h


def arrivals(rate: float, start_ns: int, seed: int | None) -> Iterator[int]:
    """Yield send times in ns for *rate* requests/s from *start_ns* on, without end.

    With a *seed* the gaps are exponential (Poisson arrivals), otherwise equal.
    """
    gap_ns = NS_PER_SEC / rate
    elapsed_ns = 0.0
    if seed is None:
        while True:
            yield start_ns + round(elapsed_ns)
            elapsed_ns += gap_ns
    draw = random.Random(seed).expovariate  # noqa: S311 - a schedule, not a secret
    while True:
        elapsed_ns += draw(1.0) * gap_ns
        yield start_ns + round(elapsed_ns)


class _Timer:
    """A timerfd, because the time-out of epoll_wait(2) has a resolution of 1 ms."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = int(self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = (ctypes.c_long * 4)()  # struct itimerspec: interval, then value

    def arm(self, when_ns: int) -> None:
        """Make the descriptor readable at *when_ns* of CLOCK_MONOTONIC."""
        self._spec[2], self._spec[3] = divmod(when_ns, NS_PER_SEC)
        if self._libc.timerfd_settime(self.fd, TFD_TIMER_ABSTIME, self._spec, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")


class _Connection:
    """A keep-alive connection; ``intended_ns`` is the intended send time of its pending request."""

    __slots__ = ("intended_ns", "response", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.intended_ns: int | None = None
        self.response = b""

    def complete(self) -> bool:
        """Return whether the response has arrived completely, by its Content-Length.

        :raises ValueError: the status is not 200, or there is no length.
        """
        head, blank, body = self.response.partition(b"\r\n\r\n")
        if not blank:
            return False
        if not head.startswith(b"HTTP/1.1 200"):
            raise ValueError("status")
        _, name, rest = head.lower().partition(b"content-length:")
        if not name:
            raise ValueError("length")
        return len(body) >= int(rest.partition(b"\r\n")[0])


class Generator:
    """Sends requests to 127.0.0.1:*port* on *connections* connections; counts in *ledger*."""

    def __init__(
        self,
        *,
        port: int,
        path: str,
        connections: int,
        schedule: Iterator[int],
        ledger: Ledger,
        timeout_ns: int,
    ) -> None:
        self._address = ("127.0.0.1", port)
        self._request = REQUEST % path.encode()
        self._schedule = schedule
        self._next_ns = next(schedule)
        self._ledger = ledger
        self._timeout_ns = timeout_ns
        self._backlog: deque[int] = deque()
        self._idle: deque[_Connection] = deque()
        self._by_fd: dict[int, _Connection] = {}
        self._missing = connections
        self._last_size = -1
        self._timer = _Timer()
        self._poller = select.epoll()
        self._poller.register(self._timer.fd, select.EPOLLIN)
        self.stopping = False
        self._reconnect()

    def run(self, until_ns: int, out: TextIO) -> None:
        """Send until *until_ns* or ``stopping``, wait for the last answers, write to *out*."""
        sweep_ns = time.monotonic_ns() + SWEEP_NS
        cpu_ns = time.process_time_ns()
        self._timer.arm(self._next_ns)
        while not self.stopping or self._ledger.pending:
            for fd, _ in self._poller.poll(0.1):
                if fd == self._timer.fd:
                    os.read(fd, 8)
                    self._send_due(until_ns)
                elif fd in self._by_fd:
                    self._receive(self._by_fd[fd])
            now_ns = time.monotonic_ns()
            if now_ns >= sweep_ns:
                sweep_ns = now_ns + SWEEP_NS
                self._sweep(now_ns)
                self.stopping = self.stopping or now_ns >= until_ns
                for second in self._ledger.completed(min(self._next_ns, now_ns)):
                    spent_ns, cpu_ns = time.process_time_ns() - cpu_ns, time.process_time_ns()
                    out.write(_line(second, spent_ns))
                    out.flush()

    def _send_due(self, until_ns: int) -> None:
        now_ns = time.monotonic_ns()
        while self._next_ns <= now_ns and not self.stopping and self._next_ns < until_ns:
            self._ledger.due(self._next_ns)
            if self._idle:
                self._ledger.sent(self._next_ns, now_ns)
                self._send(self._idle.popleft(), self._next_ns)
                now_ns = time.monotonic_ns()
            else:
                self._ledger.queued(self._next_ns)
                self._backlog.append(self._next_ns)
            self._next_ns = next(self._schedule)
        self._timer.arm(self._next_ns)

    def _send(self, connection: _Connection, intended_ns: int) -> None:
        connection.intended_ns = intended_ns
        connection.response = b""
        try:
            connection.sock.send(self._request)
        except OSError:  # closed by the peer meanwhile
            self._drop(connection)

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or connection.intended_ns is None:
            self._drop(connection)
            return
        connection.response = connection.response + data if connection.response else data
        try:
            # Parsing is the most expensive part and is skipped for a response of the same length
            # as the last one: all responses are equal.
            if len(connection.response) != self._last_size or not data.startswith(b"HTTP/1.1 200"):
                if not connection.complete():
                    return
                self._last_size = len(connection.response)
        except ValueError:
            self._drop(connection)
            return
        self._ledger.answered(connection.intended_ns, time.monotonic_ns())
        connection.intended_ns = None
        if self._backlog:
            self._send(connection, self._backlog.popleft())
        else:
            self._idle.append(connection)

    def _drop(self, connection: _Connection) -> None:
        """Close a connection; its pending request failed. ``_sweep`` opens another connection."""
        if connection.intended_ns is not None:
            self._ledger.failed(connection.intended_ns)
        elif connection in self._idle:
            self._idle.remove(connection)
        del self._by_fd[connection.sock.fileno()]
        connection.sock.close()
        self._missing += 1

    def _sweep(self, now_ns: int) -> None:
        oldest_ns = now_ns - self._timeout_ns
        for connection in list(self._by_fd.values()):
            if connection.intended_ns is not None and connection.intended_ns < oldest_ns:
                self._ledger.timed_out(connection.intended_ns)
                connection.intended_ns = None
                self._drop(connection)
        while self._backlog and self._backlog[0] < oldest_ns:
            self._ledger.timed_out(self._backlog.popleft())
        if self._missing:
            self._reconnect()

    def _reconnect(self) -> None:
        while self._missing:
            try:  # the kernel completes the handshake, also if the service stalls
                sock = socket.create_connection(self._address, timeout=1.0)
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            connection = _Connection(sock)
            self._by_fd[sock.fileno()] = connection
            self._poller.register(sock.fileno(), select.EPOLLIN)
            self._missing -= 1
            if self._backlog:
                self._send(connection, self._backlog.popleft())
            else:
                self._idle.append(connection)


def _line(second: SecondOfLoad, cpu_ns: int) -> str:
    record = {
        "second": second.index,
        "latency_us": second.latency_us,
        "late_us": second.late_us,
        "queued": second.queued,
        "errors": second.errors,
        "timeouts": second.timeouts,
        "cpu_ns": cpu_ns,
    }
    return json.dumps(record, separators=(",", ":")) + "\n"


def _raise_priority() -> str:
    """Set the highest scheduling priority that is permitted and return its name."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        pass
    else:
        return "SCHED_FIFO"
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    except PermissionError:
        return "normal priority"
    return "nice -20"


def main(argv: list[str] | None = None) -> int:
    """Run the generator as a program; after SIGTERM or SIGINT it awaits pending answers."""
    parser = argparse.ArgumentParser(prog="controller.demo.loadgen", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="port on 127.0.0.1")
    parser.add_argument("--path", default="", help="path of the request, without its first slash")
    parser.add_argument("--rate", type=float, default=1500.0, help="requests per second")
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1, help="seed of the Poisson arrivals")
    parser.add_argument("--fixed", action="store_true", help="equal gaps instead of Poisson")
    parser.add_argument("--seconds", type=float, default=600.0, help="end after this time")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="s to wait for an answer")
    parser.add_argument("--output", type=Path, help="file for the JSON lines (default: stdout)")
    args = parser.parse_args(argv)
    # The generator ends with the demonstration, also if that is killed.
    die_with_parent()
    scheduling = _raise_priority()
    start_ns = time.monotonic_ns() + 200 * NS_PER_MS
    timeout_ns = round(args.timeout * NS_PER_SEC)
    generator = Generator(
        port=args.port,
        path=args.path,
        connections=args.connections,
        schedule=arrivals(args.rate, start_ns, None if args.fixed else args.seed),
        ledger=Ledger(start_ns, timeout_ns),
        timeout_ns=timeout_ns,
    )

    def stop(_signum: int, _frame: object) -> None:
        generator.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    gc.freeze()
    gc.disable()  # a collection would delay requests; a run creates no reference cycles
    with args.output.open("w") if args.output else sys.stdout as out:
        facts = {"start_ns": start_ns, "rate": args.rate, "scheduling": scheduling}
        out.write(json.dumps(facts) + "\n")
        out.flush()
        generator.run(start_ns + round(args.seconds * NS_PER_SEC), out)
        out.write(json.dumps({"end_ns": time.monotonic_ns()}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
