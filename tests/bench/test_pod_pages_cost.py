# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CPU time of reading the pages of 200 pods: that of the thread of the sources, and of no other.

A page has 200 lines, one in ten a bucket of the histogram, and the pods answer from a process of
their own. ``SWEETPOINT_PAGES_SECONDS`` is the length of a measurement, 60 by default.
"""

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import subprocess
import sys
import threading
import time

import pytest

from controller.config.sections.service_sources import (
    Endpoint,
    MetricLine,
    PodAddress,
    PodFigures,
    ServiceLevelConfig,
)
from controller.core.units import NS_PER_SEC
from controller.probes.service_level.collector import ServiceLevels
from tests.support.waiting import eventually

pytestmark = [pytest.mark.bench]

SECONDS = int(os.environ.get("SWEETPOINT_PAGES_SECONDS", "60"))
PODS = 200
# Answers each request on any address of the loopback, as Go's server does: one connection, many
# requests. All counts grow from page to page.
_SERVER = r"""
import asyncio
BOUNDS = [0.001 * 1.5**n for n in range(19)]
number = 0
def page():
    global number
    number += 1
    lines = []
    for part in range(9):
        lines += [f"# HELP go_thing_{part} Number of things.", f"# TYPE go_thing_{part} counter"]
        lines += [f'go_thing_{part}{{code="{n}",method="get"}} {number * n}' for n in range(18)]
        if part == 4:
            name = "http_request_duration_seconds"
            lines += [f"# TYPE {name} histogram"]
            for n, bound in enumerate([*BOUNDS, "+Inf"]):
                count = number * (n + 1) * 7
                lines.append(f'{name}_bucket{{handler="/",method="get",le="{bound}"}} {count}')
            lines += [f"{name}_sum 12.5", f"{name}_count {number * 140}"]
    return ("\n".join(lines[:200]) + "\n").encode()
class Server(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.head = transport, b""
    def data_received(self, data):
        self.head += data
        while b"\r\n\r\n" in self.head:
            head, _, self.head = self.head.partition(b"\r\n\r\n")
            body = page()
            self.transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                b"Date: Sat, 28 Nov 2026 09:00:00 GMT\r\nContent-Length: %d\r\n\r\n" % len(body)
                + body
            )
            if b"Connection: close" in head:
                self.transport.close()
async def main():
    server = await asyncio.get_running_loop().create_server(Server, "0.0.0.0", 0, backlog=500)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


class Pods:
    """The pods of 20 services."""

    revision = 1

    def addresses(self) -> tuple[PodAddress, ...]:
        return tuple(
            PodAddress(f"service-{each % 20}", "web", f"127.0.1.{each + 1}") for each in range(PODS)
        )


@contextlib.contextmanager
def serving() -> Iterator[int]:
    """Run the pods; their port."""
    command = [sys.executable, "-ISc", _SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.kill()


@pytest.mark.parametrize("every_s", [5, 15])
def test_cpu_of_the_pages_of_pods(every_s: int, tmp_path: Path) -> None:
    with serving() as port:
        endpoint = Endpoint(url="/metrics", token_file=None, header_files=(), ca_file=None)
        figures = PodFigures(
            profile="web",
            port=port,
            line=MetricLine(
                endpoint=endpoint,
                metric="http_request_duration_seconds",
                labels=(),
                quantile=0.99,
            ),
            unit_ns=NS_PER_SEC,
            every_ns=every_s * NS_PER_SEC,
            timeout_ns=2 * NS_PER_SEC,
            max_age_ns=(3 * every_s + 2) * NS_PER_SEC,
        )
        levels = ServiceLevels(
            ServiceLevelConfig(socket=tmp_path / "socket", group=None, pods={"web": figures})
        )
        try:
            levels.follow_pods(Pods())
            (thread,) = [each for each in threading.enumerate() if each.name == "service-level"]
            assert thread.ident is not None
            clock = time.pthread_getcpuclockid(thread.ident)
            eventually("two pages of each pod", lambda: levels.answers > 2 * PODS)
            cpu_s, answers, began_s = time.clock_gettime(clock), levels.answers, time.monotonic()
            time.sleep(SECONDS)
            cpu_s = time.clock_gettime(clock) - cpu_s
            answers, ran_s = levels.answers - answers, time.monotonic() - began_s
            problems = [each.problem for each in levels.states(time.monotonic_ns())]
        finally:
            levels.close()
    print(
        f"\n{PODS} pods, every {every_s} s: {answers / ran_s:.1f} pages/s of "
        f"{PODS / every_s:.1f}, {1e3 * cpu_s / answers:.3f} ms of CPU each, "
        f"{cpu_s / ran_s:.2%} of a CPU; at the full rate {cpu_s / answers * PODS / every_s:.2%}"
    )
    assert not any(problems), problems
