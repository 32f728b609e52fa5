# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the history tells about a best-effort workload."""

from controller.agent.history.incidents import Coverage, Note, NoteKind
from controller.agent.history.records import Line, Moment, Write
from controller.agent.history.workload_story import WorkloadStory
from controller.core.model import (
    CgroupId,
    Knob,
    KnobValue,
    Mode,
    QosClass,
    Target,
    TargetKind,
    Workload,
)

LEVEL = Target(TargetKind.CGROUP, "memory", 9, "/batch")
JOB = Workload("job", CgroupId("cpu", 1), "/batch/job", QosClass.BE, "job", "", memory_at=LEVEL)


def moment(second: int, *writes: Write, job: Workload = JOB) -> Line:
    workloads = (job,)
    record = Moment(time_ns=second, mode=Mode.ENFORCE, writes=writes, workloads=workloads)
    return Line(second * 10**9, record)


def limit(value: str, *, held: bool = True, target: Target = LEVEL) -> Write:
    reason = "others need 1GiB" if held else "off"
    return Write(target, Knob.MEMORY_MAX, KnobValue("max"), KnobValue(value), reason, held)


def test_the_limit_of_memory_is_told_when_it_begins_and_ends_and_is_no_squeeze() -> None:
    story = WorkloadStory("job", Coverage(since_ns=0, until_ns=10**12))
    elsewhere = limit("5", target=LEVEL._replace(id=1))
    lines = (limit("100"), limit("90"), elsewhere, limit("max", held=False))
    story.read(moment(second, each) for second, each in enumerate(lines, 1))
    found = [(each.event, each.text) for each in story.incidents if isinstance(each, Note)]
    assert found == [
        (NoteKind.ORDER, "limit of memory on: others need 1GiB"),
        (NoteKind.ORDER, "limit of memory off: off"),
    ]
    assert len(found) == len(story.incidents)


def test_a_set_of_cpus_of_the_level_is_told_and_is_no_squeeze() -> None:
    story = WorkloadStory("job", Coverage(since_ns=0, until_ns=10**12))
    level = Target(TargetKind.CGROUP, "cpu", 9, "/batch")
    job = JOB._replace(quota_at=level)
    all_cpus = KnobValue("all")
    lines = [
        Write(level, Knob.CPUSET, all_cpus, KnobValue("0"), "exclusive", True),
        Write(level, Knob.CPUSET, KnobValue("0"), all_cpus, "paused", False),
    ]
    story.read(moment(second, each, job=job) for second, each in enumerate(lines, 1))
    assert [(each.event, each.text) for each in story.incidents if isinstance(each, Note)] == [
        (NoteKind.ORDER, "set of CPUs on: exclusive"),
        (NoteKind.ORDER, "set of CPUs off: paused"),
    ]
