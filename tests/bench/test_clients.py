# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Ten clients of an agent with 1,000 workloads: how long they wait, how late its ticks start."""

import http.client
import itertools
import threading
import time

import pytest

from tests.bench.crowd import crowd
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

SERVICES, BATCH = 100, 900
# The agent publishes quantiles of 600 ticks, which take two minutes.
SECONDS = 122
CLIENTS, PERIOD_S = 10, 2.0
PAGES = ("/", "/statusz", "/metrics")


class Client(threading.Thread):
    """Asks for a page every two seconds; ``answers`` are (page, status, seconds)."""

    def __init__(self, port: int, number: int, end_s: float) -> None:
        super().__init__()
        self._port = port
        self._number = number
        self._end_s = end_s
        self.answers: list[tuple[str, int, float]] = []

    def run(self) -> None:
        time.sleep(self._number * PERIOD_S / CLIENTS)
        for page in itertools.islice(itertools.cycle(PAGES), self._number, None):
            began_s = time.monotonic()
            if began_s >= self._end_s:
                return
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
            connection.request("GET", page)
            answer = connection.getresponse()
            answer.read()
            connection.close()
            took_s = time.monotonic() - began_s
            self.answers.append((page, answer.status, took_s))
            time.sleep(max(0.0, PERIOD_S - took_s))


def test_ten_clients(site: Site) -> None:
    """A few workloads of both kinds run, so that there is something to decide."""
    services, jobs = crowd(site, SERVICES, BATCH)
    wanted = [Load(path, "bursts") for path in services[:4]]
    wanted += [Load(path, "hog") for path in jobs[:2]]
    with loads(wanted, seconds=2 * SECONDS + 40) as running, AgentRun(site) as agent:
        agent.ready()
        running.start()
        time.sleep(SECONDS)
        alone = agent.status()["tick"]
        end_s = time.monotonic() + SECONDS
        clients = [Client(site.port, number, end_s) for number in range(CLIENTS)]
        for each in clients:
            each.start()
        for each in clients:
            each.join()
        asked = agent.status()["tick"]
        assert agent.stop() == 0
    answers = [answer for each in clients for answer in each.answers]
    for page in PAGES:
        took = sorted(seconds for of, _, seconds in answers if of == page)
        print(
            f"\n{page}: {len(took)} answers, median {took[len(took) // 2] * 1e3:.0f} ms, "
            f"p95 {took[int(0.95 * len(took))] * 1e3:.0f} ms, at most {took[-1] * 1e3:.0f} ms"
        )
    for name, tick in (("without clients", alone), ("with clients", asked)):
        print(
            f"{name}: tick {tick['duration_median_ns'] / 1e6:.1f} ms, p99 "
            f"{tick['duration_p99_ns'] / 1e6:.1f} ms; late {tick['late_median_ns'] / 1e6:.2f} ms, "
            f"p99 {tick['late_p99_ns'] / 1e6:.2f} ms"
        )
    assert {status for _, status, _ in answers} == {200}
    times = sorted(seconds for _, _, seconds in answers)
    assert times[int(0.95 * len(times))] <= 0.25
    assert asked["late_p99_ns"] - alone["late_p99_ns"] <= 20_000_000
