# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the executor puts back on real cgroups, and the records by which it knows."""

import errno
import itertools
from pathlib import Path

import pytest

from actuators.base import Restored, RestoreReport
from controller.core.decision import Failure
from controller.core.model import CgroupId, Knob
from controller.host.facts import CgroupLayout
from tests.kernel.crashes import wait_for_removed_cgroups
from tests.kernel.knobs import (
    Interruption,
    action,
    applied,
    dump,
    executor,
    make_child,
    make_newer,
    set_quota,
    target_of,
)

pytestmark = pytest.mark.kernel

SECOND = 1_000_000_000


def test_restore_sets_the_original_after_many_writes(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path
) -> None:
    set_quota(pod, 90_000, 100_000, 30_000)
    before = dump(pod)
    target = target_of(cgroup_layout, pod)
    agent = executor(cgroup_layout, tmp_path)
    values = ["90000 100000 30000", "20000 10000 0", "5000 10000 1000", "7000 20000 0"]
    for now_ns, (old, new) in enumerate(itertools.pairwise(values)):
        (outcome,) = agent.execute([action(target, Knob.CPU_QUOTA, old, new)], now_ns=now_ns)
        assert applied(outcome) == new
    (result,) = executor(cgroup_layout, tmp_path).restore_all().results
    assert result.result is Restored.RESTORED
    assert dump(pod) == before


@pytest.mark.thorough
def test_one_knob_is_restored_and_the_others_stay(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path
) -> None:
    target = target_of(cgroup_layout, pod)
    agent = executor(cgroup_layout, tmp_path)
    squeeze = [
        action(target, Knob.CPU_QUOTA, "max 100000 0", "5000 10000 0"),
        action(target, Knob.SCHED_IDLE, "0 333", "1"),
    ]
    agent.execute(squeeze, now_ns=0)
    cgroup = CgroupId(target.scope, target.id)
    assert agent.holds(cgroup, Knob.CPU_QUOTA) and agent.holds(cgroup, Knob.SCHED_IDLE)
    (result,) = agent.restore_all({Knob.CPU_QUOTA}).results
    assert result.result is Restored.RESTORED
    assert [r.value for r in agent.read([target])] == ["1", "max 100000 0"]
    assert not agent.holds(cgroup, Knob.CPU_QUOTA)
    assert agent.holds(cgroup, Knob.SCHED_IDLE)
    assert agent.restore_all().clean


def test_restore_leaves_a_foreign_value_alone(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path
) -> None:
    target = target_of(cgroup_layout, pod)
    agent = executor(cgroup_layout, tmp_path)
    agent.execute([action(target, Knob.CPU_QUOTA, "max 100000 0", "9000 10000 0")], now_ns=0)
    set_quota(pod, 60_000, 100_000)
    (result,) = executor(cgroup_layout, tmp_path).restore_all().results
    assert result.result is Restored.FOREIGN
    assert target.path in result.subject
    assert agent.read([target])[1].value == "60000 100000 0"
    assert executor(cgroup_layout, tmp_path).restore_all().results == ()


def test_a_value_that_another_program_sets_during_a_write_stays(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path
) -> None:
    """As runc does: it makes the cgroup of a container, and sets its limit a moment later."""
    squeeze = action(target_of(cgroup_layout, pod), Knob.CPU_QUOTA, "max 100000 0", "5000 10000 0")
    runc = Interruption(pod, 1_000)
    agent = executor(cgroup_layout, tmp_path, runc)
    (outcome,) = agent.execute([squeeze], now_ns=0)
    assert (outcome.foreign, outcome.failure) == ("1000 100000 0", None)
    assert not agent.held()
    found = dump(pod)
    assert agent.restore_all().results == ()
    assert dump(pod) == found
    # Held already: the new value is the original from then on.
    again = action(squeeze.target, Knob.CPU_QUOTA, "1000 100000 0", "2000 10000 0")
    assert applied(agent.execute([again], now_ns=1)[0]) == again.value
    runc.quota_us = 3_000
    more = action(squeeze.target, Knob.CPU_QUOTA, again.value, "4000 10000 0")
    (outcome,) = agent.execute([more], now_ns=2)
    assert outcome.foreign == "3000 100000 0"
    assert not agent.held()


def test_a_value_that_another_program_sets_during_a_restore_stays(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path
) -> None:
    squeeze = action(target_of(cgroup_layout, pod), Knob.CPU_QUOTA, "max 100000 0", "5000 10000 0")
    assert applied(executor(cgroup_layout, tmp_path).execute([squeeze], now_ns=0)[0])
    kubelet = Interruption(pod, 50_000)
    (result,) = executor(cgroup_layout, tmp_path, kubelet).restore_all().results
    assert result.result is Restored.FOREIGN
    assert result.message == "is '50000 100000 0', set by another program: left unchanged"
    assert executor(cgroup_layout, tmp_path).restore_all().results == ()


@pytest.mark.thorough
def test_the_records_of_a_removed_cgroup_are_dropped(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = target_of(cgroup_layout, pod)
    agent = executor(cgroup_layout, tmp_path)
    squeeze = action(target, Knob.CPU_QUOTA, "max 100000 0", "9000 10000 0")
    agent.execute([squeeze], now_ns=0)
    name, parent = pod.name, pod.parent
    pod.rmdir()
    (outcome,) = agent.execute([squeeze], now_ns=1)
    assert outcome.failure is Failure.GONE
    assert agent.read([target]) == ()
    make_child(parent, name)
    fresh = dump(pod)
    (outcome,) = agent.execute([squeeze], now_ns=2)
    assert outcome.failure is Failure.GONE
    assert dump(pod) == fresh
    assert agent.restore_all().results == ()
    assert not caplog.records


@pytest.mark.parametrize("damage", ["newer", "newer, in place", "truncated", "not ours"])
def test_a_knob_with_a_record_that_cannot_be_evaluated_is_left_alone(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path, damage: str
) -> None:
    target = target_of(cgroup_layout, pod)
    squeeze = action(target, Knob.CPU_QUOTA, "max 100000 0", "9000 10000 0")
    executor(cgroup_layout, tmp_path).execute([squeeze], now_ns=0)
    (record,) = (tmp_path / "journal").iterdir()
    if damage == "truncated":
        record.write_bytes(record.read_bytes()[:40])
    elif damage == "not ours":
        record.chmod(0o666)
    else:
        make_newer(record, in_place=damage.endswith("in place"))
    (data,) = (path.read_bytes() for path in (tmp_path / "journal").iterdir())
    during = dump(pod)
    for _ in range(2):
        agent = executor(cgroup_layout, tmp_path)
        assert [reading.knob for reading in agent.read([target])] == [Knob.SCHED_IDLE]
        further = action(target, Knob.CPU_QUOTA, "9000 10000 0", "5000 10000 0")
        (outcome,) = agent.execute([further], now_ns=0)
        assert outcome.failure is Failure.REFUSED
        assert "the knob is not changed" in outcome.message
        report = agent.restore_all()
        assert [result.result for result in report.results] == [Restored.UNKNOWN]
        assert not report.clean
        (kept,) = (tmp_path / "journal").iterdir()
        assert report.results[0].subject == str(kept)
        assert kept.read_bytes() == data
        assert dump(pod) == during
    # Released by hand, while the agent runs.
    set_quota(pod, None, 100_000)
    kept.unlink()
    assert agent.restore_all() == RestoreReport()
    assert len(agent.read([target])) == 2
    assert applied(agent.execute([squeeze], now_ns=100 * SECOND)[0]) == "9000 10000 0"


@pytest.mark.thorough
def test_a_renamed_cgroup_keeps_its_record(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    if cgroup_layout.version == "v2":
        pytest.skip("a cgroup of v2 cannot be renamed")
    parent = make_child(cgroup_root, "parent")
    pod = make_child(parent, "pod")
    before = dump(pod)
    target = target_of(cgroup_layout, pod)
    agent = executor(cgroup_layout, tmp_path)
    squeeze = action(target, Knob.CPU_QUOTA, "max 100000 0", "9000 10000 0")
    agent.execute([squeeze], now_ns=0)
    pod = pod.rename(parent / "renamed")
    pod = parent.rename(cgroup_root / "other") / pod.name
    # Another cgroup takes the path, and is not written.
    other = make_child(make_child(cgroup_root, "parent"), "pod")
    (reading,) = agent.read([target], {Knob.CPU_QUOTA})
    assert (reading.value, reading.original) == ("9000 10000 0", "max 100000 0")
    # A scan finds the cgroup at its new path: it is still held, by the same record.
    renamed = target_of(cgroup_layout, pod)
    assert renamed != target
    (reading,) = agent.read([renamed], {Knob.CPU_QUOTA})
    assert reading.original == "max 100000 0"
    further = action(renamed, Knob.CPU_QUOTA, "9000 10000 0", "5000 10000 0")
    (outcome,) = agent.execute([further], now_ns=1)
    assert (applied(outcome), outcome.original) == ("5000 10000 0", "max 100000 0")
    assert len(list((tmp_path / "journal").iterdir())) == 1
    pod.rename(pod.with_name("again"))
    (result,) = executor(cgroup_layout, tmp_path).restore_all().results
    assert result.result is Restored.RESTORED
    assert dump(pod.with_name("again")) == before == dump(other)


@pytest.mark.thorough
def test_restore_waits_for_a_removed_child_to_be_freed(
    cgroup_layout: CgroupLayout,
    cgroup_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait_for_removed_cgroups(monkeypatch)
    be = make_child(cgroup_root, "be")
    child = make_child(be, "child")
    set_quota(be, 20_000, 100_000)
    agent = executor(cgroup_layout, tmp_path)
    grant = [
        action(target_of(cgroup_layout, be), Knob.CPU_QUOTA, "20000 100000 0", "90000 100000 0"),
        action(target_of(cgroup_layout, child), Knob.CPU_QUOTA, "max 100000 0", "80000 100000 0"),
    ]
    assert [o.failure for o in agent.execute(grant, now_ns=0)] == [None, None]
    child.rmdir()
    report = agent.restore_all()
    assert report.clean
    assert {r.result for r in report.results} == {Restored.RESTORED, Restored.GONE}


@pytest.mark.thorough
def test_a_journal_that_cannot_be_written_protects_the_knob(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path
) -> None:
    before = dump(pod)
    agent = executor(cgroup_layout, tmp_path)
    (tmp_path / "journal").rmdir()
    squeeze = action(target_of(cgroup_layout, pod), Knob.CPU_QUOTA, "max 100000 0", "9000 10000 0")
    (outcome,) = agent.execute([squeeze], now_ns=0)
    assert (outcome.failure, outcome.errno) == (Failure.REFUSED, errno.ENOENT)
    assert dump(pod) == before
