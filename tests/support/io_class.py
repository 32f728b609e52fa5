# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A service with a class for disks, from the planner to the files of its cgroup and back."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from actuators.executor import Executor
from controller.agent.knob_targets import KnobTargets
from controller.core.model import CLASS_KNOBS, CgroupId, KnobValue, QosClass, Snapshot, Workload
from controller.core.planner import Planner
from controller.core.settings import IoClass
from controller.workloads.changes import diff_workloads
from tests.support.loops.closed_loop import make_settings

__all__ = ("check_class",)

_TICK_NS = 200_000_000
# As long as max: a file that is no file of the kernel keeps the end of a longer text.
_LIMIT = 999


class _Agent:
    """What an agent does with the knobs of one service, tick by tick."""

    def __init__(self, workload: Workload, executor: Executor, given: IoClass) -> None:
        self._settings = replace(make_settings(), io_classes={"bulk": given})
        self._workload, self.executor = workload, executor
        self._planner = Planner(self._settings, (workload,))
        self._now_ns = 0

    def tick(self, io_class: str) -> None:
        """Plan and write with the service in *io_class*; empty: in none."""
        workload = self._workload._replace(io_class=io_class)
        self._planner.set_workloads((workload,))
        targets = KnobTargets()
        targets.reconfigure(self._settings)
        targets.set_workloads((workload,), diff_workloads((), (workload,)))
        # The agent goes on to read what it holds.
        wanted = targets.select(self.executor.held())
        readings = self.executor.read(wanted, CLASS_KNOBS)
        self._now_ns += _TICK_NS
        snapshot = Snapshot(time_ns=self._now_ns, age_ns=0, workloads=(), knobs=readings)
        plan = self._planner.step(snapshot, ())
        outcomes = self.executor.execute(plan.actions, now_ns=self._now_ns)
        assert [each.message for each in outcomes if each.failure is not None] == []
        self._planner.settle(outcomes)


def check_class(
    executor: Callable[[], Executor], hierarchy: str, mount: Path, cgroup: Path, disk: str
) -> None:
    """Check that a class of the service in *cgroup* is written, given back, and undone.

    *executor* returns that of a new process with the same journal; *disk* is ``MAJOR:MINOR``.
    """
    path = "/" + str(cgroup.relative_to(mount))
    id_ = CgroupId(hierarchy, cgroup.stat().st_ino)
    workload = Workload("web", id_, path, QosClass.LS, "web", "default")

    def values() -> tuple[str, str]:
        weight = (cgroup / "io.weight").read_text().split()[1]
        return weight, (cgroup / "io.max").read_text().strip()

    limits = f"{disk} rbps=max wbps=max riops={_LIMIT} wiops=max"
    given = IoClass(800, KnobValue(f"{disk} riops={_LIMIT}"))
    agent = _Agent(workload, executor(), given)
    agent.tick("")
    assert not agent.executor.held()
    agent.tick("bulk")
    assert values() == ("800", limits)
    agent.tick("bulk")
    assert len(agent.executor.held()) == 1
    agent.tick("")
    assert not agent.executor.held()
    assert values()[0] == "100"
    assert "999" not in values()[1]
    # A process that was killed leaves its journal only.
    agent.tick("bulk")
    assert values() == ("800", limits)
    assert executor().restore_all().clean
    assert values()[0] == "100"
    assert "999" not in values()[1]
