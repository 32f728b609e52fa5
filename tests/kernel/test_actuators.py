# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The executor on real cgroups: writes, refusals, foreign values, restore."""

import errno
import itertools
from pathlib import Path

import pytest

from actuators.base import GoneError, Restored, RestoreReport
from actuators.kernfs import Cgroup
from controller.core.decision import Failure, Outcome
from controller.core.model import CgroupId, Knob
from controller.host.facts import CgroupLayout
from tests.kernel.knobs import (
    action,
    dump,
    every_actuator,
    executor,
    make_child,
    make_newer,
    set_quota,
    set_weight,
    target_of,
)

pytestmark = pytest.mark.kernel

SECOND = 1_000_000_000


@pytest.fixture
def pod(cgroup_root: Path) -> Path:
    """A cgroup with a weight that is not the default."""
    pod = make_child(cgroup_root, "pod")
    set_weight(pod, 333)
    return pod


def applied(outcome: Outcome) -> str | None:
    assert outcome.failure is None, outcome
    assert outcome.foreign is None, outcome
    return outcome.applied


def test_this_kernel_has_the_knobs(cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path) -> None:
    actuators = every_actuator(cgroup_layout, tmp_path)
    reasons = {actuator.knob: actuator.unsupported_reason() for actuator in actuators}
    assert reasons[Knob.CPU_QUOTA] is reasons[Knob.SCHED_IDLE] is None
    if cgroup_layout.version == "v1":
        assert reasons[Knob.MEMORY_HIGH] == "memory.high exists on cgroup v2 only"


def test_squeeze_and_give_back(cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path) -> None:
    before = dump(pod)
    target = target_of(cgroup_layout, pod)
    agent = executor(cgroup_layout, tmp_path)
    assert [(r.knob, r.value) for r in agent.read([target])] == [
        (Knob.SCHED_IDLE, "0 333"),
        (Knob.CPU_QUOTA, "max 100000 0"),
    ]
    squeeze = [
        action(target, Knob.CPU_QUOTA, "max 100000 0", "5000 10000 0"),
        action(target, Knob.SCHED_IDLE, "0 333", "1"),
    ]
    outcomes = agent.execute(squeeze, now_ns=0)
    assert [o.action for o in outcomes] == squeeze
    assert [applied(o) for o in outcomes] == ["5000 10000 0", "1"]
    assert [r.value for r in agent.read([target])] == ["1", "5000 10000 0"]
    assert len(list((tmp_path / "journal").iterdir())) == 2

    release = [
        action(target, Knob.SCHED_IDLE, "1", "0 333"),
        action(target, Knob.CPU_QUOTA, "5000 10000 0", "max 100000 0"),
    ]
    assert [applied(o) for o in agent.execute(release, now_ns=1)] == ["0 333", "max 100000 0"]
    assert dump(pod) == before
    assert not list((tmp_path / "journal").iterdir())
    assert agent.restore_all().results == ()


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


def test_a_refused_value_leaves_the_old_one_and_waits(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path
) -> None:
    # 999 us is below the smallest quota of the kernel, which changes the period before it refuses.
    before = dump(pod)
    target = target_of(cgroup_layout, pod)
    steps: list[str] = []
    agent = executor(cgroup_layout, tmp_path, steps.append)
    bad = action(target, Knob.CPU_QUOTA, "max 100000 0", "999 10000 0")
    (outcome,) = agent.execute([bad], now_ns=0)
    assert (outcome.failure, outcome.errno) == (Failure.REFUSED, errno.EINVAL)
    assert outcome.applied == "max 100000 0"
    assert "999" in outcome.message and target.path in outcome.message
    assert dump(pod) == before
    assert not list((tmp_path / "journal").iterdir())

    def tried(now_ns: int) -> bool:
        steps.clear()
        (again,) = agent.execute([bad], now_ns=now_ns)
        assert again.failure is Failure.REFUSED
        return any(step.startswith("before write") for step in steps)

    assert not tried(SECOND - 1)
    assert tried(SECOND)
    assert not tried(3 * SECOND - 1)
    assert tried(3 * SECOND)
    good = action(target, Knob.CPU_QUOTA, "max 100000 0", "1000 10000 0")
    (outcome,) = agent.execute([good], now_ns=7 * SECOND)
    assert applied(outcome) == "1000 10000 0"
    assert agent.restore_all().clean


def test_actions_of_a_group_fail_together(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    if cgroup_layout.version == "v2":
        pytest.skip("the kernel compares parent and child on v1 only")
    be, other = make_child(cgroup_root, "be"), make_child(cgroup_root, "other")
    mine, foreign = make_child(be, "mine"), make_child(be, "foreign")
    set_quota(foreign, 50_000, 100_000)
    before = dump(be)
    targets = {path: target_of(cgroup_layout, path) for path in (be, mine, other)}
    # The quota of be cannot go below that of foreign, so mine must not be squeezed either. The
    # cgroup other is unrelated.
    actions = [
        action(targets[path], Knob.CPU_QUOTA, "max 100000 0", "10000 100000 0")
        for path in (be, mine, other)
    ]
    steps: list[str] = []
    agent = executor(cgroup_layout, tmp_path, steps.append)
    outcomes = agent.execute(actions, now_ns=0)
    assert [o.failure for o in outcomes] == [Failure.REFUSED, Failure.REFUSED, None]
    assert {o.errno for o in outcomes[:2]} == {errno.EINVAL}
    assert dump(be) == before
    steps.clear()
    again = agent.execute(actions, now_ns=1)
    assert [o.failure for o in again] == [Failure.REFUSED, Failure.REFUSED, None]
    assert not steps, "nothing is written while an action of the group is in its back-off"
    assert agent.restore_all().clean


def test_a_written_member_of_a_failed_group_is_reverted(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    if cgroup_layout.version == "v2":
        pytest.skip("the kernel compares parent and child on v1 only")
    be = make_child(cgroup_root, "be")
    mine, foreign = make_child(be, "mine"), make_child(be, "foreign")
    set_quota(be, 90_000, 100_000)
    set_quota(mine, 70_000, 100_000)
    set_quota(foreign, 50_000, 100_000)
    before = dump(be)
    steps: list[str] = []
    agent = executor(cgroup_layout, tmp_path, steps.append)
    cut = [
        action(target_of(cgroup_layout, mine), Knob.CPU_QUOTA, "70000 100000 0", "9000 100000 0"),
        action(target_of(cgroup_layout, be), Knob.CPU_QUOTA, "90000 100000 0", "9000 100000 0"),
    ]
    outcomes = agent.execute(cut, now_ns=0)
    assert "after write cpu.cfs_quota_us=9000" in steps
    assert [o.failure for o in outcomes] == [Failure.REFUSED, Failure.REFUSED]
    assert [o.applied for o in outcomes] == ["70000 100000 0", "90000 100000 0"]
    assert dump(be) == before
    assert not list((tmp_path / "journal").iterdir())


def test_a_foreign_value_becomes_the_new_original(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = target_of(cgroup_layout, pod)
    agent = executor(cgroup_layout, tmp_path)
    agent.execute([action(target, Knob.CPU_QUOTA, "max 100000 0", "9000 10000 0")], now_ns=0)
    set_quota(pod, 60_000, 100_000)
    (outcome,) = agent.execute(
        [action(target, Knob.CPU_QUOTA, "9000 10000 0", "5000 10000 0")], now_ns=1
    )
    assert outcome.failure is None
    assert outcome.foreign == outcome.applied == "60000 100000 0"
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert agent.read([target])[1].value == "60000 100000 0"

    # The planner has seen the foreign value and squeezes: it is the original now.
    (outcome,) = agent.execute(
        [action(target, Knob.CPU_QUOTA, "60000 100000 0", "5000 10000 0")], now_ns=2
    )
    assert applied(outcome) == "5000 10000 0"
    (result,) = executor(cgroup_layout, tmp_path).restore_all().results
    assert result.result is Restored.RESTORED
    assert agent.read([target])[1].value == "60000 100000 0"


def test_the_audit_notices_a_foreign_value_once(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = target_of(cgroup_layout, pod)
    agent = executor(cgroup_layout, tmp_path)
    agent.execute([action(target, Knob.CPU_QUOTA, "max 100000 0", "9000 10000 0")], now_ns=0)
    assert not caplog.records
    # The original value, which by the journal alone could be a restore of the agent.
    set_quota(pod, None, 100_000)
    for _ in range(3):
        assert agent.read([target])[1].value == "max 100000 0"
    assert len(caplog.records) == 1
    assert agent.overwritten == {Knob.CPU_QUOTA: 1}
    assert agent.restore_all().results == ()


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


def test_a_quota_with_doubled_period_is_not_foreign(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path
) -> None:
    before = dump(pod)
    target = target_of(cgroup_layout, pod)
    agent = executor(cgroup_layout, tmp_path)
    agent.execute([action(target, Knob.CPU_QUOTA, "max 100000 0", "9000 10000 0")], now_ns=0)
    set_quota(pod, None, 20_000)  # on v1 the period cannot grow while the quota is set
    set_quota(pod, 18_000, 20_000)
    (outcome,) = agent.execute(
        [action(target, Knob.CPU_QUOTA, "9000 10000 0", "7000 10000 0")], now_ns=1
    )
    assert applied(outcome) == "7000 10000 0"
    assert agent.restore_all().clean
    assert dump(pod) == before


def test_on_v1_the_period_that_runc_writes_does_not_make_our_quota_the_original(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path
) -> None:
    if cgroup_layout.version == "v2":
        pytest.skip("quota and period are one file on v2")
    before = dump(pod)
    target = target_of(cgroup_layout, pod)
    for is_later in (False, True):
        agent = executor(cgroup_layout, tmp_path)
        agent.execute([action(target, Knob.CPU_QUOTA, "max 100000 0", "9000 10000 0")], now_ns=0)
        (pod / "cpu.cfs_period_us").write_text("100000")
        if is_later:  # a process that has only the journal
            agent = executor(cgroup_layout, tmp_path)
        assert agent.read([target])[1][2:] == ("9000 100000 0", "max 100000 0")
        assert agent.restore_all().clean
        assert dump(pod) == before


def test_a_value_that_the_planner_has_not_seen_is_not_replaced(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path
) -> None:
    set_quota(pod, 2_000, 100_000)
    target = target_of(cgroup_layout, pod)
    (outcome,) = executor(cgroup_layout, tmp_path).execute(
        [action(target, Knob.CPU_QUOTA, "max 100000 0", "50000 100000 0")], now_ns=0
    )
    assert outcome.foreign == outcome.applied == "2000 100000 0"
    assert not list((tmp_path / "journal").iterdir())


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


def test_restore_waits_for_a_removed_child_to_be_freed(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    # On v1 the kernel compares a quota with those of removed children as well, for some 15 ms.
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


def test_a_path_cannot_leave_the_hierarchy(cgroup_layout: CgroupLayout, pod: Path) -> None:
    target = target_of(cgroup_layout, pod)
    with pytest.raises(ValueError, match="leaves"):
        Cgroup(cgroup_layout.mount, target._replace(path=f"{target.path}/../x"))
    with pytest.raises(GoneError):
        Cgroup(cgroup_layout.mount, target._replace(path="/etc"))
    with pytest.raises(GoneError):
        Cgroup(cgroup_layout.mount, target._replace(path=f"{target.path}/cpu.stat"))
    with pytest.raises(GoneError):
        Cgroup(cgroup_layout.mount, target._replace(id=target.id + 1))


def test_a_link_is_not_followed(pod: Path, tmp_path: Path, cgroup_layout: CgroupLayout) -> None:
    (tmp_path / "link").symlink_to(pod)
    with pytest.raises(GoneError):
        Cgroup(tmp_path, target_of(cgroup_layout, pod)._replace(path="/link"))


def test_a_knob_is_neither_read_nor_written_in_another_hierarchy(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path
) -> None:
    target = target_of(cgroup_layout, pod)._replace(scope="memory")
    agent = executor(cgroup_layout, tmp_path)
    assert agent.read([target]) == ()
    with pytest.raises(ValueError, match="hierarchy memory"):
        agent.execute([action(target, Knob.SCHED_IDLE, "0 333", "1")], now_ns=0)
