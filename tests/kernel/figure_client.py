# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A client that prints the p99 of its requests of each second in ms; a program with the arguments

ADDRESS PORT REQUEST

Each request is due 10 ms after the last one. Its latency counts from then on, also if it had to
wait for the answer before it.
"""

import os
from pathlib import Path
import socket
import sys
import time

# As a program: its own directory is on the path, and the tree is not.
sys.path[0] = str(Path(__file__).parents[2])

from controller.host.facts import die_with_parent  # noqa: E402 - after the path

__all__ = ()

_EVERY_S, _WINDOW_S, _PATIENCE_S = 0.010, 1.0, 5.0


def main() -> None:
    """Send requests until the service or the parent ends."""
    die_with_parent()
    # Above the service and the batch work: the figure is not about this program.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    address, port, request = sys.argv[1:]
    text = request.encode().decode("unicode_escape").encode()
    while True:
        # nginx closes a connection after an hour.
        with socket.create_connection((address, int(port)), _PATIENCE_S) as connection:
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask(connection, text)


def ask(connection: socket.socket, text: bytes) -> None:
    """Send requests and print figures until the service closes the connection."""
    connection.sendall(text)
    size = len(connection.recv(1 << 18))
    due_s = window_s = time.monotonic()
    latencies: list[float] = []
    while True:
        time.sleep(max(0.0, due_s - time.monotonic()))
        connection.sendall(text)
        left = size
        while left:
            count = len(connection.recv(left))
            if not count:
                return
            left -= count
        now_s = time.monotonic()
        latencies.append(now_s - due_s)
        due_s += _EVERY_S
        if now_s - window_s >= _WINDOW_S:
            latencies.sort()
            print(f"{1e3 * latencies[int(0.99 * len(latencies))]:.3f}", flush=True)
            window_s, latencies = now_s, []


if __name__ == "__main__":
    main()
