# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""An open-loop client; run as a program with the arguments

ADDRESS PORT CONNECTIONS OUTPUT START_NS REQUEST SECONDS:RATE...

Requests are sent at equal distances in turn on the connections, whatever has been answered, so that
a stalled service does not slow the schedule down. Answers come in the order of the requests on a
connection, and all have the size of the first one. OUTPUT gets two little-endian int64 for each
request in the order of the schedule: the intended time of CLOCK_MONOTONIC in ns, and the latency
from that time in ns, -1 without an answer within ``PATIENCE_S`` after the last request.
"""

from collections import deque
import gc
import os
from pathlib import Path
import selectors
import socket
import sys
import time

import numpy as np

from controller.core.units import NS_PER_SEC
from controller.host.facts import die_with_parent

__all__ = ("Segment", "intended_ns", "main")

Segment = tuple[float, float]  # seconds, requests per second
PATIENCE_S = 5.0


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
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(request)
        self.pending: deque[int] = deque()
        self.received = 0

    def first_size(self) -> int:
        """Receive the answer to the first request, which is not counted; return its size."""
        self.socket.settimeout(PATIENCE_S)
        size = len(self.socket.recv(1 << 18))
        self.socket.setblocking(False)
        return size


def main() -> None:
    """Send all requests, wait for the answers and write the output."""
    host, port, count, output, start = sys.argv[1:6]
    request = sys.argv[6].encode().decode("unicode_escape").encode()
    segments = [(float(s), float(r)) for s, r in (word.split(":") for word in sys.argv[7:])]
    times = intended_ns(int(start), segments)
    latencies = np.full(len(times), -1, np.int64)
    die_with_parent()
    # Above the service and the batch work, so that the schedule is kept.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    gc.disable()
    connections = [_Connection((host, int(port)), request) for _ in range(int(count))]
    time.sleep(0.1)
    sizes = {each.first_size() for each in connections}
    assert len(sizes) == 1, f"answers of different sizes: {sizes}"
    assert time.monotonic_ns() < int(start), "the client started after its first request was due"
    _exchange(connections, request, sizes.pop(), times, latencies)
    Path(output).write_bytes(np.stack([times, latencies], axis=1).astype("<i8").tobytes())


def _exchange(
    connections: list[_Connection],
    request: bytes,
    size: int,
    times: np.ndarray,
    latencies: np.ndarray,
) -> None:
    schedule = times.tolist()
    end_ns = schedule[-1] + round(PATIENCE_S * NS_PER_SEC)
    selector = selectors.DefaultSelector()
    for each in connections:
        selector.register(each.socket, selectors.EVENT_READ, each)
    sent = answered = 0
    while answered < len(schedule) and (now_ns := time.monotonic_ns()) < end_ns:
        while sent < len(schedule) and schedule[sent] <= now_ns:
            connection = connections[sent % len(connections)]
            connection.socket.send(request)
            connection.pending.append(sent)
            sent += 1
        for key, _ in selector.select(0):
            connection = key.data
            connection.received += len(connection.socket.recv(1 << 18))
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
