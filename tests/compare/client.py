# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""An open-loop client; run as a program with the arguments

[--lasting] ADDRESS PORT CONNECTIONS OUTPUT START_NS REQUEST SECONDS:RATE...

Requests are sent at equal distances in turn on the connections, whatever has been answered, so that
a stalled service does not slow the schedule down. Answers come in the order of the requests on a
connection, and all have the size of the first one. OUTPUT gets two little-endian int64 for each
request in the order of the schedule: the intended time of CLOCK_MONOTONIC in ns, and the latency
from that time in ns, -1 without an answer within ``PATIENCE_S`` after the last request. With
*--lasting* a connection that the service ends is opened again, and its requests have no answer;
otherwise the client fails. Where REQUEST has a number N in braces, each request has a number below
N there at random, with as many digits as N.
"""

from collections import deque
from collections.abc import Sequence
import gc
import os
from pathlib import Path
import random
import re
import selectors
import socket
import sys
import time

import numpy as np

from controller.core.units import NS_PER_SEC
from controller.host.facts import die_with_parent

__all__ = ("Segment", "intended_ns", "main", "variants")

Segment = tuple[float, float]  # seconds, requests per second
PATIENCE_S = 5.0
_AGAIN_S = 0.05


def intended_ns(start_ns: int, segments: list[Segment]) -> np.ndarray:
    """Return the send times in ns: *segments* one after the other, from *start_ns* on."""
    parts = []
    offset_s = 0.0
    for seconds, rate in segments:
        parts.append(offset_s + np.arange(round(seconds * rate)) / rate)
        offset_s += seconds
    return start_ns + (np.concatenate(parts) * NS_PER_SEC).astype(np.int64)


class _Connection:
    """A connection, the numbers of its requests without an answer, and the bytes of a part."""

    def __init__(self, address: tuple[str, int], request: bytes) -> None:
        self._address = address
        self.socket = self._connect()
        self.socket.sendall(request)
        self.pending: deque[int] = deque()
        self.received = 0

    def _connect(self) -> socket.socket:
        made = socket.create_connection(self._address, timeout=PATIENCE_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def first_size(self) -> int:
        """Receive the answer to the first request, which is not counted; return its size."""
        self.socket.settimeout(PATIENCE_S)
        size = len(self.socket.recv(1 << 18))
        self.socket.setblocking(False)
        return size

    def send(self, request: bytes, number: int) -> None:
        """Send *request*, which has the *number*."""
        self.socket.send(request)
        self.pending.append(number)

    def receive(self) -> int:
        """Return how many bytes came."""
        return len(self.socket.recv(1 << 18))


class _Lasting(_Connection):
    """A connection that is opened again, at most every ``_AGAIN_S``; *selector* has its socket."""

    def __init__(
        self, address: tuple[str, int], request: bytes, selector: selectors.BaseSelector
    ) -> None:
        super().__init__(address, request)
        self._selector = selector
        self._is_open = True
        self._again_s = 0.0

    def send(self, request: bytes, number: int) -> None:
        """Send *request*, or lose it."""
        if not (self._is_open or self._open()):
            return
        try:
            super().send(request, number)
        except OSError:
            self._close()

    def receive(self) -> int:
        """Return how many bytes came; 0: the service has ended the connection."""
        try:
            count = super().receive()
        except OSError:
            count = 0
        if not count:
            self._close()
        return count

    def _close(self) -> None:
        self._selector.unregister(self.socket)
        self.socket.close()
        self.pending.clear()
        self.received = 0
        self._is_open = False

    def _open(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._again_s:
            return False
        self._again_s = now_s + _AGAIN_S
        try:
            self.socket = self._connect()
        except OSError:
            return False
        self.socket.setblocking(False)
        self._selector.register(self.socket, selectors.EVENT_READ, self)
        self._is_open = True
        return True


def variants(request: str) -> list[bytes]:
    """Return *request* with each number that it asks for, or as it is."""
    found = re.search(r"\{(\d+)\}", request)
    if found is None:
        return [request.encode()]
    digits = found[1]
    return [
        request.replace(found[0], f"{number:0{len(digits)}}").encode()
        for number in range(int(digits))
    ]


def main() -> None:
    """Send all requests, wait for the answers and write the output."""
    lasting = sys.argv[1] == "--lasting"
    words = sys.argv[2:] if lasting else sys.argv[1:]
    host, port, count, output, start = words[:5]
    segments = [(float(s), float(r)) for s, r in (word.split(":") for word in words[6:])]
    times = intended_ns(int(start), segments)
    each_of = variants(words[5].encode().decode("unicode_escape"))
    requests = random.Random(len(times)).choices(each_of, k=len(times))
    latencies = np.full(len(times), -1, np.int64)
    die_with_parent()
    # Above the service and the batch work, so that the schedule is kept.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    gc.disable()
    selector = selectors.DefaultSelector()
    address = (host, int(port))
    connections = [
        _Lasting(address, requests[0], selector) if lasting else _Connection(address, requests[0])
        for _ in range(int(count))
    ]
    time.sleep(0.1)
    sizes = {each.first_size() for each in connections}
    assert len(sizes) == 1, f"answers of different sizes: {sizes}"
    assert time.monotonic_ns() < int(start), "the client started after its first request was due"
    for each in connections:
        selector.register(each.socket, selectors.EVENT_READ, each)
    _exchange(connections, selector, requests, sizes.pop(), times, latencies)
    Path(output).write_bytes(np.stack([times, latencies], axis=1).astype("<i8").tobytes())


def _exchange(
    connections: Sequence[_Connection],
    selector: selectors.BaseSelector,
    requests: Sequence[bytes],
    size: int,
    times: np.ndarray,
    latencies: np.ndarray,
) -> None:
    schedule = times.tolist()
    end_ns = schedule[-1] + round(PATIENCE_S * NS_PER_SEC)
    sent = answered = 0
    while answered < len(schedule) and (now_ns := time.monotonic_ns()) < end_ns:
        while sent < len(schedule) and schedule[sent] <= now_ns:
            connections[sent % len(connections)].send(requests[sent], sent)
            sent += 1
        for key, _ in selector.select(0):
            connection = key.data
            count = connection.receive()  # which forgets what a lost connection has received
            connection.received += count
            now_ns = time.monotonic_ns()
            while connection.received >= size and connection.pending:
                connection.received -= size
                number = connection.pending.popleft()
                latencies[number] = now_ns - schedule[number]
                answered += 1
        # Not with the time-out of epoll_wait, which has a resolution of 1 ms.
        next_ns = schedule[sent] if sent < len(schedule) else now_ns + 200_000
        time.sleep(min(200_000, max(0, next_ns - time.monotonic_ns())) / NS_PER_SEC)


if __name__ == "__main__":
    main()
