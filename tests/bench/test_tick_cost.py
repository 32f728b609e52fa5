# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the agent's ticks cost a service that wakes up often: with little weight, and with much.

Blocks of three seconds in random order, under one agent that is stopped by a signal in some of
them. Best-effort work of the idle class fills all CPUs.
"""

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import random
import signal
import subprocess
import time

import numpy as np
import pytest

from controller.host.facts import CgroupLayout
from controller.host.own_cgroup import OWN_CGROUP, is_shared
from tests.kernel.agent import AgentRun, Site
from tests.kernel.test_own_cgroup import cgroup_of

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

SOURCE = Path(__file__).with_name("wakeups.c")
ROUNDS = 15
SECONDS = 3
LATE_NS = 300_000
ARMS = ("stopped", "little weight", "much weight")


@contextlib.contextmanager
def arranged(arm: str, agent: int, weight: Path, usual: int) -> Iterator[None]:
    """Stop *agent*, or let it run with a sixteenth or ten times the *usual* weight."""
    if arm == "stopped":
        os.kill(agent, signal.SIGSTOP)
    else:
        time.sleep(0.5)  # after a stop it has raised the weight itself, for 30 s
        weight.write_text(str(usual // 16 if arm == "little weight" else 10 * usual))
    try:
        yield
    finally:
        os.kill(agent, signal.SIGCONT)


def test_the_cost_of_ticks(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> None:
    assert is_shared(cgroup_of("self", cgroup_layout)), "to be started from a shell"
    site = Site(cgroup_root, cgroup_layout, tmp_path)
    site.write("", mode="observe")
    program = tmp_path / "wakeups"
    subprocess.run(["gcc", "-O2", "-pthread", "-o", program, SOURCE], check=True)
    (site.batch[0].parent / "cpu.idle").write_text("1")
    file, usual = ("cpu.shares", 1024) if site.layout.version == "v1" else ("cpu.weight", 100)
    weight = cgroup_layout.mount / OWN_CGROUP / file
    late: dict[str, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = {arm: [] for arm in ARMS}
    hogs = ["stress-ng", "--quiet", "--cpu", str(os.cpu_count() or 1)]
    with AgentRun(site) as agent, subprocess.Popen(joining(site.batch[0], hogs)) as load:
        pid = agent.ready().pids()[1]
        try:
            for _ in range(ROUNDS):
                for arm in random.sample(ARMS, len(ARMS)):
                    with arranged(arm, pid, weight, usual):
                        output = subprocess.run(
                            joining(site.service, [str(program), str(SECONDS)]),
                            check=True,
                            capture_output=True,
                        ).stdout
                    late[arm].append(np.array(output.split(), dtype=np.int64))
        finally:
            load.terminate()
        assert agent.stop() == 0
    shares = {}
    for arm, blocks in late.items():
        p99_us = np.median([np.quantile(each, 0.99) for each in blocks]) / 1e3
        shares[arm] = np.array([(each > LATE_NS).mean() for each in blocks])
        low, middle, high = (100 * np.quantile(shares[arm], part) for part in (0.1, 0.5, 0.9))
        later = f"{middle:.2f} % ({low:.2f} to {high:.2f})"
        print(f"\n{arm}: p99 {p99_us:.0f} us, later than 0.3 ms {later}")
    cost = {arm: float(np.median(shares[arm] - shares["stopped"])) for arm in ARMS}
    assert cost["little weight"] < 0.5 * cost["much weight"]


def joining(cgroup: Path, command: list[str]) -> list[str]:
    """Return *command* so that it runs in *cgroup*."""
    return ["sh", "-ec", f'echo $$ > {cgroup}/cgroup.procs; exec "$@"', "-", *command]
