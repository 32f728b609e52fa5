# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Knobs in cgroup v2 files: written, refused, rounded, restored, and overwritten by others."""

from collections.abc import Iterator
import errno
import mmap
from pathlib import Path

import pytest

from actuators.base import Restored
from controller.core.decision import Action, Failure, Outcome
from controller.core.model import Knob
from controller.host.facts import CgroupLayout
from tests.kernel.disks import made_disks
from tests.kernel.knobs import action, dump, executor, make_child, set_quota, target_of
from tests.support.cgroups import remove_cgroup

pytestmark = pytest.mark.vm

SECOND = 1_000_000_000
MIB = 1 << 20


@pytest.fixture
def pod() -> Iterator[Path]:
    """A cgroup with limits of another program."""
    root = make_child(Path("/sys/fs/cgroup"), "sweetpoint-test-files")
    pod = make_child(root, "pod")
    set_quota(pod, 80_000, 100_000, 10_000)
    (pod / "cpuset.cpus").write_text("0,2-3")
    yield pod
    remove_cgroup(root)


@pytest.fixture
def disks() -> Iterator[tuple[str, str]]:
    """The numbers of two disks."""
    with made_disks(2) as (first, second):
        yield first.number, second.number


def test_every_file_knob_is_written_and_restored(
    cgroup_layout: CgroupLayout, pod: Path, disks: tuple[str, str], tmp_path: Path
) -> None:
    one, two = disks
    (pod / "io.max").write_text(f"{two} wiops=500")
    before = dump(pod)
    assert {"memory.high", "io.weight", "io.max", "cpu.max.burst"} <= before.keys()
    target = target_of(cgroup_layout, pod)
    agent = executor(cgroup_layout, tmp_path)
    originals = {r.knob: r.value for r in agent.read([target])}
    assert originals == {
        Knob.SCHED_IDLE: "0 100",
        Knob.CPU_QUOTA: "80000 100000 10000",
        Knob.CPUSET: "0,2-3",
        Knob.MEMORY_HIGH: "max",
        Knob.MEMORY_MAX: "max",
        Knob.IO_WEIGHT: "100",
        Knob.IO_MAX: f"{two} wiops=500",
    }
    page = mmap.PAGESIZE
    wishes = {
        Knob.SCHED_IDLE: ("1", "1"),
        Knob.CPU_QUOTA: ("5000 10000 5000", "5000 10000 5000"),
        Knob.CPUSET: ("3", "3"),
        Knob.MEMORY_HIGH: (str(64 * MIB + 1), str(64 * MIB)),
        Knob.MEMORY_MAX: (str(96 * MIB + 1), str(96 * MIB)),
        Knob.IO_WEIGHT: ("7", "7"),
        Knob.IO_MAX: (f"{one} rbps=1048576 wiops=100;{two} wbps=9",) * 2,
    }
    assert 64 * MIB % page == 0
    outcomes = agent.execute(
        [action(target, knob, originals[knob], wish) for knob, (wish, _) in wishes.items()],
        now_ns=0,
    )
    assert [(o.failure, o.applied) for o in outcomes] == [(None, got) for _, got in wishes.values()]
    assert (pod / "memory.high").read_text().strip() == str(64 * MIB)
    assert (pod / "io.weight").read_text().split() == ["default", "7"]
    assert (pod / "cpu.max").read_text().strip() == "5000 10000"
    lines = (pod / "io.max").read_text().splitlines()
    assert sorted(lines) == sorted(
        [
            f"{one} rbps=1048576 wbps=max riops=max wiops=100",
            f"{two} rbps=max wbps=9 riops=max wiops=max",
        ]
    )
    assert executor(cgroup_layout, tmp_path).restore_all().clean
    assert dump(pod) == before


def test_a_refusal_is_reported_and_leaves_no_change(
    cgroup_layout: CgroupLayout, pod: Path, disks: tuple[str, str], tmp_path: Path
) -> None:
    before = dump(pod)
    target = target_of(cgroup_layout, pod)
    agent = executor(cgroup_layout, tmp_path)

    def refused(knob: Knob, previous: str, value: str) -> Outcome:
        wish = action(target, knob, previous, value)
        (outcome,) = agent.execute([wish], now_ns=0)
        assert outcome.failure is Failure.REFUSED
        assert outcome.applied == previous
        assert target.path in outcome.message
        return outcome

    was = "80000 100000 10000"
    # The burst is above the quota: the quota is written first, and has to be reverted.
    assert refused(Knob.CPU_QUOTA, was, "5000 10000 5001").errno == errno.EINVAL
    assert refused(Knob.IO_WEIGHT, "100", "10001").errno == errno.EINVAL
    assert refused(Knob.CPUSET, "0,2-3", "1,9999").errno == errno.ERANGE
    assert refused(Knob.MEMORY_HIGH, "max", "-4096").errno == errno.EINVAL
    # The limit of the first of two disks is written first, and has to be reverted.
    zero = f"{disks[0]} rbps=4096;{disks[1]} rbps=0"
    assert refused(Knob.IO_MAX, "max", zero).errno in (errno.EINVAL, errno.ERANGE)
    assert dump(pod) == before
    assert not list((tmp_path / "journal").iterdir())


WISHES = {
    Knob.MEMORY_HIGH: ("max", str(100 * MIB), "memory.high", str(200 * MIB), str(200 * MIB)),
    Knob.MEMORY_MAX: ("max", str(100 * MIB), "memory.max", str(200 * MIB), str(200 * MIB)),
    Knob.IO_WEIGHT: ("100", "10", "io.weight", "50", "50"),
    Knob.CPUSET: ("0,2-3", "2", "cpuset.cpus", "1,3", "1,3"),
    Knob.CPU_QUOTA: (
        "80000 100000 10000",
        "20000 100000 10000",
        "cpu.max",
        "60000 100000",
        "60000 100000 10000",
    ),
}


@pytest.mark.parametrize("knob", WISHES)
def test_a_foreign_value_is_the_new_original(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path, knob: Knob
) -> None:
    was, ours, file, written, theirs = WISHES[knob]
    target = target_of(cgroup_layout, pod)

    def wish(previous: str, value: str) -> Action:
        return action(target, knob, previous, value)

    agent = executor(cgroup_layout, tmp_path)
    assert agent.execute([wish(was, ours)], now_ns=0)[0].applied == ours
    (pod / file).write_text(written)
    # A process that has only the journal leaves the foreign value.
    (result,) = executor(cgroup_layout, tmp_path).restore_all().results
    assert result.result is Restored.FOREIGN

    # The process that wrote the knob finds the foreign value before its next write, and restores
    # that value in the end.
    (pod / file).write_text(was if file != "cpu.max" else "80000 100000")
    agent = executor(cgroup_layout, tmp_path)
    agent.execute([wish(was, ours)], now_ns=0)
    (pod / file).write_text(written)
    (outcome,) = agent.execute([wish(ours, was)], now_ns=SECOND)
    assert outcome.foreign == outcome.applied == theirs
    assert agent.execute([wish(theirs, ours)], now_ns=2 * SECOND)[0].applied == ours
    (result,) = agent.restore_all().results
    assert result.result is Restored.RESTORED
    assert {r.knob: r.value for r in agent.read([target])}[knob] == theirs


def test_containers_of_a_squeezed_pod_are_started_and_resized(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path
) -> None:
    # The writes of runc and kubelet: on v2 the kernel compares no quotas of parent and child.
    target = target_of(cgroup_layout, pod)
    squeeze = action(target, Knob.CPU_QUOTA, "80000 100000 10000", "1000 10000 0")
    agent = executor(cgroup_layout, tmp_path)
    assert agent.execute([squeeze], now_ns=0)[0].applied == "1000 10000 0"
    container = pod / "container"
    container.mkdir()
    for limit in ("50000 100000", "80000 100000", "20000 100000"):
        (container / "cpu.max").write_text(limit)
    assert (pod / "cpu.max").read_text() == "1000 10000\n"
    for limit in ("90000 100000", "20000 100000"):
        (pod / "cpu.max").write_text(limit)
        again = action(target, Knob.CPU_QUOTA, f"{limit} 0", "1000 10000 0")
        agent.read([target])
        assert agent.execute([again], now_ns=SECOND)[0].applied == "1000 10000 0"
    assert agent.restore_all().clean
    assert (pod / "cpu.max").read_text() == "20000 100000\n"
    assert (container / "cpu.max").read_text() == "20000 100000\n"


def test_a_limit_disappears_with_its_disk(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path
) -> None:
    target = target_of(cgroup_layout, pod)
    agent = executor(cgroup_layout, tmp_path)
    with made_disks(1) as (disk,):
        # The kernel refuses a limit for a disk that it does not have.
        both = f"{disk.number} rbps=1048576;250:250 rbps=1048576"
        (outcome,) = agent.execute([action(target, Knob.IO_MAX, "max", both)], now_ns=0)
        assert (outcome.failure, outcome.applied) == (None, f"{disk.number} rbps=1048576")
    report = agent.restore_all()
    assert report.clean, report
    assert (pod / "io.max").read_text() == ""
