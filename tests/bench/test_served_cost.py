# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What an agent costs a service that answers over the network: its p99 with and without one.

nginx gets 2,000 requests/s; stress-ng of the idle class fills all CPUs. Blocks of four seconds come
in random order. ``SWEETPOINT_SERVED_ROUNDS`` is how many of each arm there are, 15 by default.
"""

from collections.abc import Callable
import contextlib
import os
from pathlib import Path
import random
import subprocess
import tempfile
import time

import numpy as np
import pytest

from controller.core.units import NS_PER_SEC
from controller.trial.interval import ratio_interval
from tests.bench.test_tick_cost import joining
from tests.compare.services import SERVICES, Traffic
from tests.kernel.agent import AgentRun, Site
from tests.support.needs import needs_program

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

ROUNDS = int(os.environ.get("SWEETPOINT_SERVED_ROUNDS", "15"))
SECONDS = 4.0
LEAD_S = 2.0
# The agent has read everything once, and looks.
SETTLE_S = 3.0
NONE = "none"
# The same twice shows what chance does.
ARMS = (NONE, "none again", "observing")


@needs_program("nginx")
@needs_program("stress-ng")
def test_the_cost_of_an_agent(site: Site) -> None:
    site.write(mode="observe")
    (site.root / "batch" / "cpu.idle").write_text("1")
    nginx = SERVICES["nginx"]
    hogs = ["stress-ng", "--quiet", "--cpu", str(os.cpu_count() or 1)]
    p99_ms: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with (
        tempfile.TemporaryDirectory() as name,
        nginx.running(_readable(name), _joins(site.service)) as port,
        subprocess.Popen(joining(site.batch[0], hogs)) as load,
    ):
        try:
            for _ in range(ROUNDS):
                for arm in random.sample(ARMS, len(ARMS)):
                    with contextlib.ExitStack() as stack:
                        if arm == "observing":
                            stack.enter_context(AgentRun(site)).ready()
                            time.sleep(SETTLE_S)
                        p99_ms[arm].append(_served(Path(name), port))
        finally:
            load.terminate()
    print(f"\np99 of nginx, and relative to no agent, {ROUNDS} blocks each")
    for arm, found in p99_ms.items():
        line = f"{arm:12} {np.median(found):.2f} ms ({min(found):.2f} to {max(found):.2f})"
        if arm != NONE:
            ratio = ratio_interval(list(zip(found, p99_ms[NONE], strict=True)))
            line += ", {:.2f} [{:.2f}, {:.2f}]".format(*ratio)
        print(line)


def _joins(cgroup: Path) -> Callable[[], None]:
    def join() -> None:
        (cgroup / "cgroup.procs").write_text("0")

    return join


def _readable(name: str) -> Path:
    """Return the directory *name*, which the workers of nginx may read."""
    home = Path(name)
    home.chmod(0o755)
    return home


def _served(home: Path, port: int) -> float:
    """Return the p99 in ms of a block."""
    nginx = SERVICES["nginx"]
    start_ns = time.monotonic_ns() + round(LEAD_S * NS_PER_SEC)
    traffic = Traffic(nginx, port, [(SECONDS, nginx.rate)], start_ns, home)
    try:
        _, latency_ns = traffic.run()
    finally:
        traffic.stop()
    assert (latency_ns >= 0).all(), "requests without an answer"
    return float(np.quantile(latency_ns, 0.99, method="higher")) / 1e6
