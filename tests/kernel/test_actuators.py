# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The executor on real cgroups: writes, refusals, foreign values, paths."""

import errno
from pathlib import Path

import pytest

from actuators.base import GoneError, Restored
from actuators.kernfs import Cgroup
from controller.core.decision import Action, Failure
from controller.core.model import Knob
from controller.host.facts import CgroupLayout
from tests.kernel.knobs import (
    Interruption,
    action,
    applied,
    dump,
    every_actuator,
    executor,
    make_child,
    set_quota,
    target_of,
)

pytestmark = pytest.mark.kernel

SECOND = 1_000_000_000


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


@pytest.mark.thorough
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


def refused_group(layout: CgroupLayout, root: Path) -> tuple[Path, list[Action]]:
    """Return a cgroup, and cuts of its child ``mine`` and of itself; v1 refuses the second."""
    be = make_child(root, "be")
    mine, foreign = make_child(be, "mine"), make_child(be, "foreign")
    for path, quota_us in ((be, 90_000), (mine, 70_000), (foreign, 50_000)):
        set_quota(path, quota_us, 100_000)
    return be, [
        action(target_of(layout, mine), Knob.CPU_QUOTA, "70000 100000 0", "9000 100000 0"),
        action(target_of(layout, be), Knob.CPU_QUOTA, "90000 100000 0", "9000 100000 0"),
    ]


@pytest.mark.thorough
def test_a_written_member_of_a_failed_group_is_reverted(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    if cgroup_layout.version == "v2":
        pytest.skip("the kernel compares parent and child on v1 only")
    be, cut = refused_group(cgroup_layout, cgroup_root)
    before = dump(be)
    steps: list[str] = []
    agent = executor(cgroup_layout, tmp_path, steps.append)
    outcomes = agent.execute(cut, now_ns=0)
    assert "after write cpu.cfs_quota_us=9000" in steps
    assert [o.failure for o in outcomes] == [Failure.REFUSED, Failure.REFUSED]
    assert [o.applied for o in outcomes] == ["70000 100000 0", "90000 100000 0"]
    assert dump(be) == before
    assert not list((tmp_path / "journal").iterdir())


@pytest.mark.thorough
def test_a_failed_group_leaves_a_value_that_another_program_set_meanwhile(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    if cgroup_layout.version == "v2":
        pytest.skip("the kernel compares parent and child on v1 only")
    be, cut = refused_group(cgroup_layout, cgroup_root)
    agent = executor(cgroup_layout, tmp_path, Interruption(be / "mine", 60_000))
    outcomes = agent.execute(cut, now_ns=0)
    assert [o.foreign for o in outcomes] == ["60000 100000 0", None]
    assert [o.failure for o in outcomes] == [None, Failure.REFUSED]
    assert [o.applied for o in outcomes] == ["60000 100000 0", "90000 100000 0"]
    assert "60000" in (be / "mine/cpu.cfs_quota_us").read_text()
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_a_link_is_not_followed(pod: Path, tmp_path: Path, cgroup_layout: CgroupLayout) -> None:
    (tmp_path / "link").symlink_to(pod)
    with pytest.raises(GoneError):
        Cgroup(tmp_path, target_of(cgroup_layout, pod)._replace(path="/link"))


@pytest.mark.thorough
def test_a_knob_is_neither_read_nor_written_in_another_hierarchy(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path
) -> None:
    target = target_of(cgroup_layout, pod)._replace(scope="memory")
    agent = executor(cgroup_layout, tmp_path)
    assert agent.read([target]) == ()
    with pytest.raises(ValueError, match="hierarchy memory"):
        agent.execute([action(target, Knob.SCHED_IDLE, "0 333", "1")], now_ns=0)
