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
from typing import NamedTuple

import pytest

from actuators.executor import Executor
from controller.core.decision import Outcome
from controller.core.model import CgroupId, Knob, QosClass, Workload
from controller.core.planner import Planner
from controller.core.settings import SafeState
from controller.core.tuning import DEFAULT_LIMITS
from controller.demo import simulated_knobs
from controller.demo.simulated_node import SimulatedNode
from controller.host.facts import CgroupLayout
from controller.workloads.knob_placement import KnobPlacer
from tests.kernel.knobs import dump, executor, make_child, target_of
from tests.support.loops.closed_loop import TICK_NS, make_settings
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]

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
    targets = [*parents, *map(simulated_knobs.target_of, workloads)]
    outcomes: tuple[Outcome, ...] = ()
    knobs = tuple(each for each in agent.read(targets) if each.knob is Knob.CPU_QUOTA)
    for tick in range(10):
        node.blind = tick > 1
        snapshot = replace(node.snapshot(tick * TICK_NS), knobs=knobs)
        outcomes = agent.execute(planner.step(snapshot, outcomes).actions, now_ns=tick * TICK_NS)
        assert all(outcome.failure is None for outcome in outcomes)


class Squeezed(NamedTuple):
    """Many best-effort cgroups at the floor, and the CPUs of this machine."""

    batch: Path
    jobs: list[Path]
    cpus: int
    is_v2: bool

    @property
    def limits(self) -> list[float]:
        """The quotas in CPUs: one for all on cgroup v2, else one for each."""
        if self.is_v2:
            quota, period = (self.batch / "cpu.max").read_text().split()
            return [int(quota) / int(period)]
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        texts = (tuple((job / file).read_text() for file in files) for job in self.jobs)
        return [int(quota) / int(period) for quota, period in texts]

    @property
    def throttled(self) -> list[int]:
        """How often the kernel enforced each quota."""
        limited = [self.batch] if self.is_v2 else self.jobs
        stats = [(path / "cpu.stat").read_text().split() for path in limited]
        return [int(stat[stat.index("nr_throttled") + 1]) for stat in stats]


@contextlib.contextmanager
def squeezed(layout: CgroupLayout, root: Path, state_dir: Path) -> Iterator[Squeezed]:
    """Squeeze many cgroups; afterwards all knobs are as they were."""
    cpus = len(os.sched_getaffinity(0))
    batch = make_child(root, "batch")
    jobs = [make_child(batch, f"job-{index}") for index in range(30 * cpus)]
    before = dump(root)
    agent = executor(layout, state_dir)
    squeeze(agent, place(layout, jobs), cpus)
    yield Squeezed(batch, jobs, cpus, layout.version == "v2")
    agent.restore_all()
    assert dump(root) == before


def test_a_full_squeeze_of_many_hogs(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    with (
        contextlib.ExitStack() as running,
        squeezed(cgroup_layout, cgroup_root, tmp_path) as found,
    ):
        if found.is_v2:
            assert found.limits == [pytest.approx(SHARE * found.cpus, rel=0.01)]
        else:
            # One quota for all might make a write of another program fail: 1 mcpu each is left.
            assert found.limits == [pytest.approx(0.001, rel=0.002)] * len(found.jobs)
        # One quota is used up by few. They end when it is lifted: with it that takes minutes.
        running.enter_context(hogs(found.jobs[: found.cpus] if found.is_v2 else found.jobs))
        eventually("each quota is used up", lambda: all(found.throttled))


@pytest.mark.timed
def test_many_hogs_use_no_more_than_a_full_squeeze_leaves(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    with squeezed(cgroup_layout, cgroup_root, tmp_path) as found:
        with hogs(found.jobs):
            time.sleep(SETTLE_S)
            used = used_cpus(found.batch)
        left = sum(found.limits)
        print(f"{len(found.jobs)} hogs use {used / found.cpus:.2%} of {found.cpus} CPUs")
        # On v2 the emulator's pauses count as use, which is taken from later periods.
        assert (0 if found.is_v2 else 0.5 * left) < used <= left * SLACK
