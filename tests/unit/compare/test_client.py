# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The schedule of requests, and latencies of a service that stalls."""

from pathlib import Path
import socket
import subprocess
import sys
import threading
import time

import numpy as np

from tests.compare import client
from tests.compare.services import SERVICES

STALL_S = 0.3


def test_segments_follow_each_other() -> None:
    times = client.intended_ns(1000, [(1.0, 2.0), (0.5, 4.0)])
    assert (times - 1000).tolist() == [0, 500_000_000, 1_000_000_000, 1_250_000_000]


def test_a_shape_is_repeated_to_the_length_of_the_block() -> None:
    segments = SERVICES["nginx"].segments("bursty", 5.0)
    assert [seconds for seconds, _ in segments] == [1.5, 0.5, 1.5, 0.5, 1.0]
    assert sum(seconds * rate for seconds, rate in segments) == 2000.0 * 4.5


def serve(listener: socket.socket) -> None:
    """Answer one connection; the fifth answer comes late, and so do those that wait behind it."""
    connection, _ = listener.accept()
    answered = 0
    with connection:
        while data := connection.recv(4096):
            for _ in range(data.count(b"\n")):
                answered += 1
                if answered == 5:
                    time.sleep(STALL_S)
                connection.sendall(b"0123456789")


def test_latency_counts_from_the_intended_time(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        output = tmp_path / "latencies"
        start_ns = time.monotonic_ns() + 5 * 10**9
        host, port = listener.getsockname()
        command = [sys.executable, client.__file__, host, str(port), "1", str(output)]
        subprocess.run([*command, str(start_ns), r"get\n", "0.5:20"], check=True, timeout=60)
        server.join()
    found = np.frombuffer(output.read_bytes(), "<i8").reshape(-1, 2)
    assert (found[:, 0] - start_ns).tolist() == [50_000_000 * number for number in range(10)]
    # The first answer told the size, so the fourth request of the schedule stalls. Its successors
    # were sent at their times and have waited since then.
    late_ns = found[3:7, 1] - (STALL_S * 1e9 - 50e6 * np.arange(4))
    assert (late_ns > 0).all()
