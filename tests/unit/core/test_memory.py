# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The memory guard: which limits it writes, and when it restores them."""

from dataclasses import replace

import pytest

from controller.core.decision import Action, Failure, Outcome
from controller.core.knobs.knob_state import KnobState
from controller.core.memory import MemoryGuardian
from controller.core.model import (
    CgroupId,
    Knob,
    KnobReading,
    KnobValue,
    MemorySample,
    MemoryUse,
    Mode,
    Pause,
    QosClass,
    Target,
    TargetKind,
    Workload,
)
from controller.core.settings import HostFacts, MemoryGuard, SafeState, Settings
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import WorkloadIndex

MIB = 1 << 20
LEVEL = Target(TargetKind.CGROUP, "v2", 9, "/batch")
JOB = Workload("job", CgroupId("v2", 1), "/batch/job", QosClass.BE, "job", "", memory_at=LEVEL)
SETTINGS = Settings(
    tick_ns=NS_PER_SEC,
    host=HostFacts(cpus=2, memory_bytes=1000 * MIB),
    profiles={},
    reserve_cpus=0,
    safe_state=SafeState.STATIC,
    stale_ticks=5,
    mode=Mode.ENFORCE,
    memory=MemoryGuard(margin_bytes=100 * MIB),
)


class Node:
    """A guard and one cgroup whose limit it moves; amounts in MiB."""

    def __init__(
        self, original: str = "max", settings: Settings = SETTINGS, level: Target = LEVEL
    ) -> None:
        self.settings, self.guard, self.knobs = settings, MemoryGuardian(), KnobState()
        self.index, self.level = WorkloadIndex([JOB._replace(memory_at=level)], {}), level
        self.value = self.original = KnobValue(original)
        self.now_ns = 0
        self.resync = True
        self.jobs: tuple[MemoryUse, ...] = ()
        self.reasons: list[str] = []
        self._outcomes: list[Outcome] = []

    def tick(
        self,
        used: int,
        others: int,
        *,
        refuse: bool = False,
        needed: int | None = None,
        part: float = 0.0,
    ) -> str:
        """Make a tick, carry out its writes, and return the limit."""
        self.now_ns += NS_PER_SEC
        held = None if self.value == self.original else self.original
        reading = KnobReading(self.level, Knob.MEMORY_MAX, self.value, held)
        self.knobs.update((reading,), self._outcomes, True, self.now_ns)
        cgroup = CgroupId(self.level.scope, self.level.id)
        use = MemoryUse(cgroup, used * MIB, (used if needed is None else needed) * MIB)
        sample = MemorySample(0, others * MIB, (use,), self.jobs)
        self.guard.update(sample, self.settings, self.index, self.now_ns)
        actions = self.guard.actions(self.knobs, self.resync, self.now_ns, part, "web suffers")
        self.reasons = [each.reason for each in actions]
        self.knobs.commit(tuple(actions))
        self._outcomes = [self._carry_out(each, refuse) for each in actions]
        amount = self.value
        return amount if amount == "max" else f"{int(amount) // MIB}"

    def _carry_out(self, action: Action, refuse: bool) -> Outcome:
        if refuse:
            held = None if self.value == self.original else self.original
            outcome = Outcome(action=action, applied=self.value, failure=Failure.REFUSED)
            return replace(outcome, original=held)
        self.value = action.value
        held = None if self.value == self.original else self.original
        return Outcome(action=action, applied=action.value, original=held)


def test_the_limit_is_what_the_others_leave() -> None:
    node = Node()
    assert node.tick(used=50, others=300) == "600"
    assert node.tick(used=50, others=400) == "500"
    report = node.guard.report
    assert report is not None
    assert (report.room_bytes, report.needed_bytes) == (500 * MIB, 50 * MIB)


def test_the_limit_stays_above_the_use_and_is_raised_only_with_the_room() -> None:
    node = Node()
    assert node.tick(used=450, others=300) == "600"
    assert node.tick(used=450, others=700) == "514"
    assert node.tick(used=510, others=700) == "514"
    assert node.tick(used=300, others=700) == "364"
    node.now_ns += 60 * NS_PER_SEC
    assert node.tick(used=300, others=300) == "600"


def test_work_that_was_not_known_is_not_counted_twice() -> None:
    """An agent that starts counts all memory as that of the others until it knows the pods."""
    node = Node()
    unknown = MemorySample(0, 700 * MIB, ())
    node.guard.update(unknown, SETTINGS, node.index, 0)
    assert node.tick(400, 300) == "600"
    assert node.guard.report is not None and node.guard.report.others_bytes == 300 * MIB
    assert not node.guard.shares and not node.guard.verdicts


def test_new_work_was_no_memory_of_the_others() -> None:
    node = Node()
    for second, others in enumerate((600, 500)):
        sample = MemorySample(0, others * MIB, ())
        node.guard.update(sample, SETTINGS, node.index, second)
    node.tick(300, 500)
    assert node.guard.report is not None and node.guard.report.others_bytes == 600 * MIB


def test_memory_that_the_guard_leaves_alone_is_that_of_the_others() -> None:
    """With one pod of the level paused the guard does not limit the level, which needs 400."""
    node, own = Node(), LEVEL._replace(id=77, path="/other")
    job = JOB._replace(memory_at=own, cgroup=CgroupId("v2", 77))
    level = MemoryUse(CgroupId("v2", LEVEL.id), 400 * MIB, 400 * MIB)
    other = MemoryUse(CgroupId("v2", own.id), 50 * MIB, 50 * MIB)
    sample = MemorySample(0, 200 * MIB, (level, other))
    node.guard.update(sample, SETTINGS, WorkloadIndex([job], {}), 0)
    report = node.guard.report
    assert report is not None
    assert (report.needed_bytes, report.room_bytes) == (50 * MIB, 300 * MIB)
    # The level is limited again: nothing of it stays in the peak.
    both = WorkloadIndex([job, JOB._replace(memory_at=LEVEL)], {})
    node.guard.update(sample._replace(available_bytes=1), SETTINGS, both, NS_PER_SEC)
    report = node.guard.report
    assert report is not None and not node.guard.verdicts
    assert (report.needed_bytes, report.room_bytes) == (450 * MIB, 700 * MIB)


def test_a_small_change_is_not_written() -> None:
    node = Node()
    assert node.tick(used=50, others=300) == "600"
    assert node.tick(used=50, others=303) == "600"
    assert node.tick(used=50, others=304) == "596"


def test_a_refused_limit_is_tried_again() -> None:
    node = Node()
    assert node.tick(used=50, others=300, refuse=True) == "max"
    assert node.tick(used=50, others=300) == "600"


def test_a_stricter_limit_of_another_program_stays() -> None:
    node = Node(original=str(400 * MIB))
    assert node.tick(used=50, others=300) == "400"
    assert node.tick(used=50, others=600) == "300"
    node.now_ns += 60 * NS_PER_SEC
    assert node.tick(used=50, others=300) == "400"


def test_off_and_observe_restore_and_write_nothing() -> None:
    for settings in (
        replace(SETTINGS, memory=None),
        replace(SETTINGS, mode=Mode.OBSERVE),
        replace(SETTINGS, host=HostFacts(cpus=2)),
    ):
        node = Node()
        assert node.tick(used=50, others=300) == "600"
        node.settings = settings
        assert node.tick(used=50, others=300) == "max"
        assert node.guard.report is None
        node.value = node.original
        assert node.tick(used=50, others=300) == "max"


def test_a_shortage_is_told_once_and_so_is_its_end() -> None:
    node, told = Node(), []
    # Work that needs too much ends, starts again, and needs too much again.
    again = [(550, 400), (300, 400)] * 5
    for used, others in ((100, 300), *again, *[(460, 400)] * 21):
        node.tick(used, others)
        told += [each.text for each in node.guard.verdicts]
    assert told == [
        "best-effort work needs more memory than there is: 550MiB of 500MiB",
        "best-effort work has room again: 460MiB of 500MiB",
    ]


def test_workloads_without_a_limit_are_counted() -> None:
    node = Node()
    node.index = WorkloadIndex([JOB, JOB._replace(cgroup=CgroupId("v2", 2), memory_at=None)], {})
    node.tick(used=50, others=300)
    (verdict,) = node.guard.verdicts
    assert verdict.text.startswith("1 best-effort workloads have no cgroup")
    node.tick(used=50, others=300)
    assert not node.guard.verdicts


def test_while_room_is_short_workloads_get_shares_by_need_and_keep_them_for_a_while() -> None:
    first, second, other = (CgroupId("v2", number) for number in (1, 2, 3))
    node = Node()
    node.index = WorkloadIndex([JOB, JOB._replace(name="two", cgroup=second)], {})
    needs = ((first, 300), (second, 100), (other, 900))
    node.jobs = tuple(MemoryUse(each, 999 * MIB, mib * MIB) for each, mib in needs)
    node.tick(used=400, others=449)
    assert node.guard.shares == {}
    node.tick(used=400, others=460)
    assert {c: round(b / MIB) for c, b in node.guard.shares.items()} == {first: 330, second: 110}
    node.tick(used=400, others=600)
    shares = node.guard.shares
    assert sum(shares.values()) == 300 * MIB
    assert shares[first] > 2 * shares[second]
    node.jobs = ()
    node.now_ns += 60 * NS_PER_SEC
    node.tick(used=10, others=100)
    assert node.guard.shares == {}
    node.tick(used=400, others=800)
    assert node.guard.shares == {}, "no workload has been read"


def test_there_are_no_shares_on_v1() -> None:
    node = Node()
    node.jobs = (MemoryUse(CgroupId("cpu", 1), 9, 9),)
    node.index = WorkloadIndex([JOB._replace(cgroup=CgroupId("cpu", 1))], {})
    node.tick(used=400, others=600)
    assert node.guard.shares == {}


def test_a_cgroup_above_a_paused_workload_is_not_limited() -> None:
    other = JOB._replace(name="other", cgroup=CgroupId("v2", 2), path="/batch/other")
    node = Node()
    node.index = WorkloadIndex([JOB, other], {}, Pause(workloads=("other",)))
    assert node.tick(used=50, others=300) == "max"


def test_on_v1_a_squeeze_takes_page_cache_step_by_step_and_gives_it_back_at_once() -> None:
    node = Node(level=LEVEL._replace(scope="memory"))
    assert node.tick(used=880, others=0, needed=100) == "900"
    # The capacity of 1,000 leaves 125 above the need.
    limits = [node.tick(used=880, others=0, needed=100, part=1.0)]
    assert node.reasons == ["web suffers"]
    while limits[-1] != "225":
        limits.append(node.tick(used=int(limits[-1]), others=0, needed=100, part=1.0))
    assert limits[:2] == ["816", "752"] and len(limits) == 11
    # In a squeeze no small step is lost; half of it is half of the way in factors.
    assert node.tick(used=225, others=0, needed=110, part=1.0) == "235"
    assert node.tick(used=235, others=0, needed=100, part=0.5) == "444"
    assert node.tick(used=440, others=0, needed=100) == "900"
    (reason,) = node.reasons
    assert reason.startswith("everything but best-effort work needs 0B of ")


def test_on_v2_a_squeeze_moves_no_limit_of_the_guard() -> None:
    squeezed, free = (Node().tick(used=880, others=0, needed=100, part=p) for p in (1.0, 0.0))
    assert squeezed == free


def test_what_is_guarded_is_known_while_the_guard_is_on() -> None:
    node = Node()
    assert node.guard.guarded == frozenset()
    node.tick(used=50, others=300)
    assert node.guard.guarded == {CgroupId("v2", 9)}
    node.settings = replace(SETTINGS, memory=None)
    node.tick(used=50, others=300)
    assert node.guard.guarded == frozenset()


OTHER = Target(TargetKind.CGROUP, "memory", 77, JOB.path)


def own_limit(
    limit: str,
    used: int | None,
    *,
    wanted: int = 64,
    original: str = "max",
    runs: bool = False,
    at: Target | None = None,
) -> str:
    """Return the value that is written for a job that requested *wanted* MiB; empty for none.

    The job arrives in the second look, unless it *runs* already in the first one. On v1 the cgroup
    *at* is that of its memory.
    """
    job = JOB._replace(limit_memory_bytes=wanted * MIB, own_memory_at=at)
    place = at or target_of(job)
    guard, knobs, index = MemoryGuardian(), KnobState(), WorkloadIndex([job], {})
    readings = tuple(
        KnobReading(target, Knob.MEMORY_MAX, KnobValue(now), None if now == first else first)
        for target, now, first in (
            (LEVEL, KnobValue("max"), KnobValue("max")),
            (place, KnobValue(limit), KnobValue(original)),
        )
    )
    knobs.update(readings, [], True, 1)
    jobs = () if used is None else (MemoryUse(job.cgroup, used * MIB, used * MIB),)
    level = MemoryUse(CgroupId("v2", 9), 10 * MIB, 10 * MIB)
    if not runs:
        other = WorkloadIndex([JOB], {})
        guard.update(MemorySample(0, 100 * MIB, (level,), ()), SETTINGS, other, 1)
        # It was small when it came.
        came = (MemoryUse(job.cgroup, MIB, MIB),) if limit != "max" else jobs
        guard.update(MemorySample(0, 100 * MIB, (level,), came), SETTINGS, index, 1)
    guard.update(MemorySample(0, 100 * MIB, (level,), jobs), SETTINGS, index, 1)
    actions = guard.actions(knobs, True, 1)
    found = [each.value for each in actions if each.target == place]
    return found[0] if found else ""


def target_of(workload: Workload) -> Target:
    return Target(TargetKind.CGROUP, *workload.cgroup, workload.path)


@pytest.mark.parametrize("at", [None, OTHER])
@pytest.mark.parametrize(
    ("limit", "used", "wanted", "written"),
    [
        ("max", None, 64, str(64 * MIB)),  # it arrived just now
        ("max", 16, 64, str(64 * MIB)),
        ("max", 17, 64, ""),  # it is no arrival, and may need more later
        (str(64 * MIB), 64, 64, ""),
        (str(64 * MIB), 64, 128, str(128 * MIB)),  # resized upward
        (str(64 * MIB), 30, 32, str(32 * MIB)),
        (str(64 * MIB), 40, 32, ""),
    ],
)
def test_a_request_of_memory_is_a_limit_where_it_does_not_kill(
    limit: str, used: int | None, wanted: int, written: str, at: Target | None
) -> None:
    assert own_limit(limit, used, wanted=wanted, at=at) == written


def test_a_workload_that_runs_already_gets_no_limit_that_could_end_it() -> None:
    assert own_limit("max", None, runs=True) == own_limit("max", 17, runs=True) == ""
    assert own_limit("max", 1, runs=True) == str(64 * MIB)


def test_a_stricter_limit_of_another_program_stays_below_a_request() -> None:
    assert own_limit(str(32 * MIB), 5, original=str(32 * MIB)) == ""


def test_a_guarded_workload_that_runs_already_keeps_what_it_has_above_its_request() -> None:
    own = LEVEL._replace(path="/own")
    job = JOB._replace(memory_at=own, own_memory_at=own, limit_memory_bytes=64 * MIB)
    node = Node(level=own)
    node.index = WorkloadIndex([job], {})
    assert node.tick(200, others=300) == "600"
    assert node.tick(300, others=300) == "600"


def test_a_guarded_workload_has_no_more_than_it_requested() -> None:
    own = target_of(JOB)
    node = Node(level=own)
    job = JOB._replace(memory_at=own, limit_memory_bytes=64 * MIB)
    node.index = WorkloadIndex([job], {})
    assert node.tick(used=0, others=300) == "64"
