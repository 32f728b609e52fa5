# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Best-effort work stays off exclusive CPUs: on which cgroups, and with which set."""

from collections.abc import Sequence

import pytest

from controller.core.decision import Outcome
from controller.core.knob_values import ALL_CPUS, format_cpuset, parse_cpuset
from controller.core.knobs.knob_state import KnobState
from controller.core.model import (
    CgroupId,
    Knob,
    KnobReading,
    KnobValue,
    Pause,
    QosClass,
    Snapshot,
    Target,
    TargetKind,
    Workload,
)
from controller.core.planner import Planner
from controller.core.workload_index import WorkloadIndex
from controller.core.writes.actions import isolation_actions
from tests.support.loops.closed_loop import TICK_NS, make_settings

LEVEL = Target(TargetKind.CGROUP, "v2", 1, "/kubepods/besteffort")
POD = Target(TargetKind.CGROUP, "v2", 7, "/kubepods/besteffort/pod7")


def job(id_: int, **fields: object) -> Workload:
    path = f"/kubepods/besteffort/pod{id_}"
    made = Workload(f"job{id_}", CgroupId("v2", id_), path, QosClass.BE, "job", "default")
    return made._replace(**fields)  # type: ignore[arg-type]


class Node:
    """The knobs of one node, tick by tick; every write succeeds."""

    def __init__(self, value: str = "all", target: Target = LEVEL) -> None:
        self.knobs = KnobState()
        self.now_ns = 0
        self.reading = KnobReading(target, Knob.CPUSET, KnobValue(value))

    def tick(
        self, shared_cpus: str, workloads: Sequence[Workload], pause: Pause | None = None
    ) -> list[tuple[str, str]]:
        """Return the writes of one tick: cgroup and value."""
        self.now_ns += 1
        self.knobs.update((self.reading,), (), False, self.now_ns)
        index = WorkloadIndex(workloads, {}, pause)
        actions = isolation_actions(index, shared_cpus, self.knobs, self.now_ns)
        self.knobs.commit(tuple(actions))
        return [(each.target.path, str(each.value)) for each in actions]


JOBS = (job(7, quota_at=LEVEL), job(8, quota_at=LEVEL))


def test_the_level_follows_what_is_exclusive_and_is_given_back() -> None:
    node = Node()
    assert node.tick("", JOBS) == []
    assert node.tick("0,2-3", JOBS) == [(LEVEL.path, "0,2-3")]
    assert node.tick("0,2-3", JOBS) == []
    assert node.tick("0", JOBS) == [(LEVEL.path, "0")]
    assert node.tick("0,3", JOBS) == [(LEVEL.path, "0,3")]
    assert node.tick("", JOBS) == [(LEVEL.path, "all")]
    assert node.tick("", JOBS) == []


@pytest.mark.parametrize(
    ("theirs", "writes"),
    [("2-5", ["2-3"]), ("2", []), ("4-5", []), ("0-3", []), ("all", ["0-3"])],
)
def test_a_set_of_another_program_is_narrowed_and_never_empty(
    theirs: str, writes: list[str]
) -> None:
    node = Node(theirs)
    assert [value for _, value in node.tick("0-3", JOBS)] == writes


def test_a_set_that_would_become_empty_goes_back() -> None:
    node = Node("2-5")
    assert node.tick("0-3", JOBS) == [(LEVEL.path, "2-3")]
    assert node.tick("0-1", JOBS) == [(LEVEL.path, "2-5")]


def test_pods_have_sets_where_the_level_has_other_work_too() -> None:
    container = job(70, container_of=POD)
    assert Node(target=POD).tick("0", [job(7)]) == [(POD.path, "0")]
    assert Node(target=POD).tick("0", [container]) == [(POD.path, "0")]
    assert Node(target=LEVEL).tick("0", [job(7)]) == []


def test_a_pod_that_may_have_cpus_of_its_own_is_left_out() -> None:
    assert Node(target=POD).tick("0", [job(7, may_own_cpus=True)]) == []


def test_a_paused_pod_keeps_the_level_free_of_sets() -> None:
    assert Node().tick("0", JOBS, Pause(workloads=("job7",))) == []
    assert Node(target=POD).tick("0", [job(7)], Pause(workloads=("job7",))) == []


def test_a_level_without_the_cpuset_controller_is_not_written() -> None:
    node = Node(target=LEVEL._replace(id=99))
    assert node.tick("0", JOBS) == []


@pytest.mark.parametrize("text", ["0", "0-3", "0,2-3,8", "1-2,4,6-7"])
def test_sets_have_the_form_of_the_kernel(text: str) -> None:
    cpus = parse_cpuset(KnobValue(text))
    assert cpus is not None and format_cpuset(cpus) == text


@pytest.mark.parametrize("pause", [Pause(everything=True), Pause(workloads=("job8",))])
def test_a_pause_gives_the_level_back_and_its_end_takes_it_again(pause: Pause) -> None:
    planner = Planner(make_settings(), JOBS)
    knobs, now_ns = (KnobReading(LEVEL, Knob.CPUSET, ALL_CPUS),), 0

    def tick(pause: Pause | None) -> list[str]:
        nonlocal now_ns
        now_ns += TICK_NS
        plan = planner.step(
            Snapshot(
                time_ns=now_ns,
                age_ns=0,
                workloads=(),
                knobs=knobs,
                pause=pause,
                shared_cpus="0",
            ),
            (),
        )
        planner.settle(
            [Outcome(action=e, applied=e.value, original=ALL_CPUS) for e in plan.actions]
        )
        return [str(each.value) for each in plan.actions]

    assert [tick(None), tick(None)] == [["0"], []]
    assert [tick(pause), tick(pause)] == [["all"], []]
    assert [tick(None), tick(None)] == [["0"], []]
