# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""An open-loop client of memcached and redis; run as a program: PORT RATE CONNECTIONS REQUEST.

RATE requests per second are sent at equal distances, in turn on the connections, whatever has been
answered. The program runs until it is killed.
"""

import os
import selectors
import socket
import sys
import time

__all__ = ("main",)


def main() -> None:
    """Send requests until the end of the program."""
    port, rate, number = (int(text) for text in sys.argv[1:4])
    request = sys.argv[4].encode() + b"\r\n"
    # Above the service and the batch work, so that the schedule is kept.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    connections = []
    selector = selectors.DefaultSelector()
    for _ in range(number):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ)
        connections.append(connection)
    start_s = time.monotonic()
    sent = 0
    while True:
        while start_s + sent / rate <= time.monotonic():
            connections[sent % number].send(request)
            sent += 1
        for key, _ in selector.select(0):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.recv(65536)
        # Not with the time-out of epoll_wait, which has a resolution of 1 ms.
        time.sleep(max(0.0, start_s + sent / rate - time.monotonic()))


if __name__ == "__main__":
    main()
