# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The load generator and its accounting of requests, also while the service stalls."""

from collections.abc import Iterator
import contextlib
import itertools
import json
from pathlib import Path
import select
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from controller.demo.ledger import Ledger
from controller.demo.loadgen import arrivals
from controller.demo.results import quantile
from tests.support.waiting import DEADLINE_S, eventually

SECOND = 1_000_000_000
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """An HTTP server in one thread; at the answer ``stall_at`` all connections stall."""

    def __init__(self, stall_at: int = -1, stall_s: float = 0.0, close_at: int = -1) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._stall_at, self._stall_s, self._close_at = stall_at, stall_s, close_at
        self._end_r, self._end_w = socket.socketpair()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> "Server":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_w.send(b".")
        self._thread.join()
        self._end_w.close()

    def _serve(self) -> None:
        sockets = [self._listener, self._end_r]
        answers = itertools.count(1)
        while self._end_r not in (ready := select.select(sockets, [], [])[0]):
            for sock in ready:
                if sock is self._listener:
                    sockets.append(sock.accept()[0])
                    continue
                number = next(answers)
                if number == self._close_at or not self._answer(sock):
                    sockets.remove(sock)
                    sock.close()
                if number == self._stall_at:
                    time.sleep(self._stall_s)
        for sock in sockets:
            sock.close()

    def _answer(self, sock: socket.socket) -> bool:
        with contextlib.suppress(OSError):
            if sock.recv(4096):
                sock.sendall(RESPONSE)
                return True
        return False


def generate(
    port: int, tmp_path: Path, *, rate: int, seconds: int, timeout_s: float = DEADLINE_S
) -> list[dict[str, Any]]:
    """Return what the generator writes of its first *seconds*; it is stopped after them."""
    output = tmp_path / "load.jsonl"
    command = [sys.executable, "-m", "controller.demo.loadgen", "--fixed", "--connections", "4"]
    command += ["--port", str(port), "--rate", str(rate), "--seconds", str(2 * DEADLINE_S)]
    command += ["--timeout", str(timeout_s), "--output", str(output)]

    def lines() -> list[dict[str, Any]]:
        # The last part is no line yet.
        return [json.loads(line) for line in output.read_text().split("\n")[:-1]]

    def written() -> bool:
        assert process.poll() is None
        return output.exists() and any(each.get("second") == seconds - 1 for each in lines())

    with subprocess.Popen(command) as process:
        eventually("the last second", written)
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    return [each for each in lines() if each.get("second", 0) < seconds]


def test_a_stall_hits_every_request_that_was_due_in_it(tmp_path: Path) -> None:
    with Server(stall_at=150, stall_s=0.5) as server:
        lines = generate(server.port, tmp_path, rate=200, seconds=2)
    seconds = [line for line in lines if "second" in line]
    latency = [us for line in seconds for us in line["latency_us"]]
    # Half a second at 200 requests/s is 100 requests that wait 250 ms on average. A generator
    # that waited with its four connections would show four of them.
    assert sum(us > 250_000 for us in latency) >= 45
    assert (quantile(latency, 0.99) or 0) > 400_000
    assert sum(line["queued"] for line in seconds) >= 45
    # The generator itself was not late: a wait for a connection is not counted as lateness.
    assert all(len(line["late_us"]) + line["queued"] == len(line["latency_us"]) for line in seconds)


def test_every_request_of_a_second_is_accounted_for(tmp_path: Path) -> None:
    with Server(close_at=120) as server:
        lines = generate(server.port, tmp_path, rate=100, seconds=2)
    assert "start_ns" in lines[0]
    assert "end_ns" in lines[-1]
    seconds = [line for line in lines if "second" in line]
    assert [line["second"] for line in seconds] == [0, 1]
    assert [len(line["latency_us"]) for line in seconds] == [100, 100]
    # Only the request on the connection that the server closed fails.
    assert sum(line["errors"] for line in seconds) == 1


def test_without_a_server_all_requests_time_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    lines = generate(port, tmp_path, rate=20, seconds=1, timeout_s=1)
    (second,) = [line for line in lines if "second" in line]
    assert second["timeouts"] == second["queued"] == 20
    assert min(second["latency_us"]) == 1_000_000


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    yield Ledger(10 * SECOND, 5 * SECOND)


def test_a_request_belongs_to_its_intended_second(ledger: Ledger) -> None:
    intended = 10 * SECOND + 900_000_000
    ledger.due(intended)
    ledger.sent(intended, intended + 20_000)
    assert ledger.completed(12 * SECOND) == []
    ledger.answered(intended, intended + 400_000_000)
    first, second = ledger.completed(12 * SECOND)
    assert (first.index, first.latency_us, first.late_us) == (0, [400_000], [20])
    assert (second.index, second.latency_us) == (1, [])


def test_seconds_are_returned_in_order_and_only_when_complete(ledger: Ledger) -> None:
    slow, quick = 10 * SECOND, 11 * SECOND
    ledger.due(slow)
    ledger.due(quick)
    ledger.answered(quick, quick + 1000)
    assert ledger.completed(12 * SECOND) == []
    ledger.timed_out(slow)
    assert [second.index for second in ledger.completed(12 * SECOND - 1)] == [0]
    assert [second.index for second in ledger.completed(12 * SECOND)] == [1]
    assert ledger.pending == 0


def test_failures_count_with_the_timeout_as_latency(ledger: Ledger) -> None:
    for intended in (10 * SECOND, 10 * SECOND + 1):
        ledger.due(intended)
    ledger.failed(10 * SECOND)
    ledger.timed_out(10 * SECOND + 1)
    (second,) = ledger.completed(11 * SECOND)
    assert second.latency_us == [5_000_000, 5_000_000]
    assert (second.errors, second.timeouts) == (1, 1)


def test_arrivals() -> None:
    assert list(itertools.islice(arrivals(1000, 7, None), 3)) == [7, 1_000_007, 2_000_007]
    poisson = list(itertools.islice(arrivals(1000, 0, 5), 20_000))
    assert poisson == list(itertools.islice(arrivals(1000, 0, 5), 20_000))
    gaps = [later - earlier for earlier, later in itertools.pairwise(poisson)]
    # Exponential gaps: mean equal to standard deviation; 20,000 draws are within 3 %.
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(1e6, rel=0.03)
    assert spread == pytest.approx(1e6, rel=0.03)


def test_quantile_is_the_nearest_rank() -> None:
    values = list(range(100, 0, -1))
    assert quantile(values, 0.99) == 99
    assert quantile(values, 0.5) == 50
    assert quantile(values, 1.0) == 100
    assert quantile([3.0], 0.01) == 3.0
    assert quantile([], 0.5) is None
    with pytest.raises(ValueError, match="not in"):
        quantile(values, 0.0)
