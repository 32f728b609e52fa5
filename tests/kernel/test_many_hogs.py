# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a full squeeze leaves to many workloads that always want to run."""

from collections.abc import Iterator
import contextlib
from dataclasses import replace
import os
from pathlib import Path
import signal
import time

import pytest

from actuators.executor import Executor
from controller.core.control.tuning import DEFAULT_LIMITS
from controller.core.decision import Outcome
from controller.core.model import CgroupId, Knob, QosClass, Workload
from controller.core.planner import Planner
from controller.core.settings import SafeState
from controller.demo import simulated_node
from controller.demo.simulated_node import SimulatedNode
from controller.host.facts import CgroupLayout
from controller.workloads.knob_placement import KnobPlacer
from tests.kernel.knobs import dump, executor, make_child, target_of
from tests.support.loops.closed_loop import TICK_NS, make_settings

pytestmark = pytest.mark.kernel

SHARE = 0.02
# A quota is used up in steps of a clock tick, and what exceeds it is taken from later periods.
SLACK = 1.3
SETTLE_S, SECONDS = 5.0, 5.0


@contextlib.contextmanager
def hogs(cgroups: list[Path]) -> Iterator[None]:
    """Run a busy process in each of *cgroups*; all begin together."""
    gate, opener = os.pipe()
    pids = []
    try:
        for cgroup in cgroups:
            pid = os.fork()
            if not pid:
                os.close(opener)
                os.read(gate, 1)
                while True:
                    pass
            pids.append(pid)
            (cgroup / "cgroup.procs").write_text(str(pid))
        os.close(opener)
        yield
    finally:
        os.close(gate)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def used_cpus(batch: Path) -> float:
    """Return the CPUs that all below *batch* use."""
    start, before = time.monotonic(), _used_s(batch)
    time.sleep(SECONDS)
    return (_used_s(batch) - before) / (time.monotonic() - start)


def _used_s(batch: Path) -> float:
    if (batch / "cpu.max").exists():
        return int((batch / "cpu.stat").read_text().split()[1]) / 1e6
    # The cpuacct controller may be mounted elsewhere.
    pids = (int(pid) for file in batch.glob("*/cgroup.procs") for pid in file.read_text().split())
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9


def place(layout: CgroupLayout, cgroups: list[Path]) -> tuple[Workload, ...]:
    """Return the best-effort workloads of *cgroups*, with what is set above them."""
    targets = [target_of(layout, cgroup) for cgroup in cgroups]
    return KnobPlacer(layout).place(
        tuple(
            Workload(each.path, CgroupId(each.scope, each.id), each.path, QosClass.BE, "", "")
            for each in targets
        ),
        0,
    )


def squeeze(agent: Executor, workloads: tuple[Workload, ...], cpus: int) -> None:
    """Put *workloads* to the floor, as in the safe state of a node whose probe has died."""
    node = SimulatedNode(1, wants=())
    limits = replace(DEFAULT_LIMITS[Knob.CPU_QUOTA], floor=SHARE / 2 * cpus)
    settings = make_settings(cpus=cpus, limits=limits, safe_state=SafeState.FLOOR)
    planner = Planner(settings, (*node.sensitive, *workloads))
    parents = {each.quota_at for each in workloads if each.quota_at is not None}
    targets = [*parents, *map(simulated_node.target_of, workloads)]
    outcomes: tuple[Outcome, ...] = ()
    knobs = tuple(each for each in agent.read(targets) if each.knob is Knob.CPU_QUOTA)
    for tick in range(10):
        node.blind = tick > 1
        snapshot = replace(node.snapshot(tick * TICK_NS), knobs=knobs)
        outcomes = agent.execute(planner.step(snapshot, outcomes).actions, now_ns=tick * TICK_NS)
        assert all(outcome.failure is None for outcome in outcomes)


def test_a_full_squeeze_of_many_hogs(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    cpus = len(os.sched_getaffinity(0))
    batch = make_child(cgroup_root, "batch")
    cgroups = [make_child(batch, f"job-{index}") for index in range(30 * cpus)]
    before = dump(cgroup_root)
    agent = executor(cgroup_layout, tmp_path)
    squeeze(agent, place(cgroup_layout, cgroups), cpus)
    limit = (batch / "cpu.max").read_text() if cgroup_layout.version == "v2" else ""
    with hogs(cgroups):
        time.sleep(SETTLE_S)
        used = used_cpus(batch)
    print(f"{len(cgroups)} hogs use {used / cpus:.2%} of {cpus} CPUs")
    if cgroup_layout.version == "v2":
        # The emulator's pauses count as use, which is taken from later periods.
        assert 0 < used <= SHARE * cpus * SLACK
        quota_us, period_us = map(int, limit.split())
        assert quota_us / period_us == pytest.approx(SHARE * cpus, rel=0.01)
    else:
        # One quota for all might make a write of another program fail: 1 mcpu each is left.
        assert 0.5 * len(cgroups) / 1000 < used <= len(cgroups) / 1000 * SLACK
    agent.restore_all()
    assert dump(cgroup_root) == before
