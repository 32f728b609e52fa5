# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which knobs are read back, and in which order."""

from controller.agent.knob_targets import KnobTargets
from controller.core.model import CgroupId, Knob, QosClass, Target, TargetKind, Workload
from controller.workloads.changes import diff_workloads

# A frozen workload is thawed by what froze it.
OF_THE_PLANNER = frozenset(Knob) - {Knob.FREEZE, Knob.CPUSET}
BATCH = Target(TargetKind.CGROUP, "cpu", 1, "/batch")
JOBS = tuple(
    Workload(f"job{n}", CgroupId("cpu", n), f"/batch/{n}", QosClass.BE, "job", "", idle_at=BATCH)
    for n in (2, 3)
)
WEB = Workload("web", CgroupId("cpu", 9), "/web", QosClass.LS, "web", "default")
LINK = Target(TargetKind.LINK, "net", 4, "eth0")


def test_what_concerns_many_workloads_is_read_first() -> None:
    targets = KnobTargets()
    targets.set_workloads((WEB, *JOBS), diff_workloads((), (WEB, *JOBS)))
    wanted = targets.select([LINK])
    # The service has no target: its profile sets no knob of its own.
    assert [each.path for each in wanted] == ["/batch", "/batch/2", "/batch/3", "eth0"]
    assert set(wanted.values()) == {OF_THE_PLANNER}
    targets.set_workloads(JOBS[1:], diff_workloads((WEB, *JOBS), JOBS[1:]))
    assert [each.path for each in targets.select([])] == ["/batch", "/batch/3"]


def test_knobs_of_another_agent_are_not_read() -> None:
    targets = KnobTargets()
    targets.set_workloads(JOBS, diff_workloads((), JOBS))
    idle = frozenset({Knob.SCHED_IDLE})
    assert targets.cede(idle) == idle
    assert not targets.cede(idle)
    (knobs,) = set(targets.select([]).values())
    assert knobs == OF_THE_PLANNER - idle
    assert not targets.cede(frozenset())
    assert Knob.SCHED_IDLE in targets.select([])[BATCH]


def test_sets_of_cpus_are_read_once_cpus_are_exclusive() -> None:
    targets = KnobTargets()
    assert Knob.CPUSET not in targets.select([BATCH])[BATCH]
    targets.isolate()
    assert Knob.CPUSET in targets.select([BATCH])[BATCH]
    targets.cede(frozenset({Knob.CPUSET}))
    assert Knob.CPUSET not in targets.select([BATCH])[BATCH]
