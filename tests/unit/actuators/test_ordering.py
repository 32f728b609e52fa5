# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Order and grouping of the writes of one tick, and the back-off after refused writes."""

import errno
from pathlib import Path
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from actuators.base import Actuator, Phase
from actuators.cpu import CpuIdle, CpuQuota
from actuators.ordering import Backoff, group_actions, order_actions
from actuators.resctrl.objects import ResctrlMounter, control_groups, monitoring_groups
from actuators.resctrl.schemata import ResctrlL3, ResctrlMb
from controller.core.decision import Action
from controller.core.model import Knob, KnobValue, Target, TargetKind


def actuators(version: Literal["v1", "v2"] = "v1") -> dict[Knob, Actuator]:
    knobs: tuple[Actuator, ...] = (
        CpuIdle(Path("/nowhere"), "cpu", version),
        CpuQuota(Path("/nowhere"), "cpu", version),
    )
    return {knob.knob: knob for knob in knobs}


def target(path: str) -> Target:
    return Target(TargetKind.CGROUP, "cpu", hash(path), path)


def set_quota(path: str, previous_us: int | str, value_us: int | str) -> Action:
    return Action(
        target=target(path),
        knob=Knob.CPU_QUOTA,
        previous=KnobValue(f"{previous_us} 100000 0"),
        value=KnobValue(f"{value_us} 100000 0"),
        reason="test",
    )


def set_idle(path: str) -> Action:
    return Action(
        target=target(path),
        knob=Knob.SCHED_IDLE,
        previous=KnobValue("0 1024"),
        value=KnobValue("1"),
        reason="test",
    )


def test_children_are_lowered_before_parents_and_parents_raised_before_children() -> None:
    actions = [
        set_quota("/up/a", 1000, 9000),
        set_quota("/up", 1000, 9000),
        set_quota("/down", 9000, 1000),
        set_quota("/down/a/b", 9000, 1000),
        set_quota("/down/a", 9000, 1000),
    ]
    paths = [action.target.path for action in order_actions(actions, actuators())]
    assert paths == ["/down/a/b", "/down/a", "/down", "/up", "/up/a"]


tree = ("/a", "/a/b", "/a/b/c", "/a/d")
limits = st.one_of(st.just("max"), st.sampled_from([1000, 2000, 4000, 8000]))
valid = st.tuples(limits, limits, limits, limits).filter(lambda values: allowed(values))


def allowed(values: tuple[int | str, ...]) -> bool:
    # The rule of the kernel on v1: no limit is above that of the nearest limited ancestor.
    limit_of = dict(zip(tree, values, strict=True))
    for path, limit in limit_of.items():
        ancestors = [limit_of[p] for p in tree if path.startswith(p + "/")]
        if limit != "max" and any(p != "max" and int(limit) > int(p) for p in ancestors):
            return False
    return True


@settings(deadline=None)
@given(before=valid, after=valid)
def test_no_write_in_this_order_exceeds_the_limit_of_an_ancestor(
    before: tuple[int | str, ...], after: tuple[int | str, ...]
) -> None:
    actions = [set_quota(p, a, b) for p, a, b in zip(tree, before, after, strict=True)]
    now = dict(zip(tree, before, strict=True))
    for action in order_actions(actions, actuators()):
        now[action.target.path] = action.value.split()[0]
        assert allowed(tuple(now[path] for path in tree)), action


def test_groups_are_the_subtrees_that_the_kernel_checks_together() -> None:
    actions = [
        set_quota("/be/pod1/main", 9000, 1000),
        set_quota("/be/pod2", 9000, 1000),
        set_quota("/best", 9000, 1000),
        set_idle("/be"),
        set_quota("/be", 9000, 1000),
    ]
    groups = [[a.target.path for a in g] for g in group_actions(actions, actuators())]
    assert groups == [["/be/pod1/main", "/be/pod2", "/be"], ["/best"], ["/be"]]
    assert len(group_actions(actions, actuators("v2"))) == len(actions)


def test_backoff_doubles_up_to_a_minute_and_a_success_clears_it() -> None:
    backoff, cgroup, now_ns, waits_s = Backoff(), target("/x"), 0, []
    for times in range(1, 9):
        assert backoff.waiting(cgroup, Knob.CPU_QUOTA, now_ns) is None
        assert backoff.refused(cgroup, Knob.CPU_QUOTA, now_ns, 22, "no").times == times
        refusal = backoff.waiting(cgroup, Knob.CPU_QUOTA, now_ns)
        assert refusal is not None
        waits_s.append((refusal.retry_at_ns - now_ns) // 10**9)
        now_ns = refusal.retry_at_ns
    assert waits_s == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff.waiting(cgroup, Knob.SCHED_IDLE, 0) is None
    backoff.clear(cgroup, Knob.CPU_QUOTA)
    assert backoff.refused(cgroup, Knob.CPU_QUOTA, now_ns, 22, "no").times == 1


def test_a_refusal_that_depends_on_the_moment_has_no_backoff() -> None:
    backoff, cgroup = Backoff(), target("/x")
    for times in (1, 2, 3):
        assert backoff.refused(cgroup, Knob.MEMORY_MAX, 5, errno.EBUSY, "no").times == times
        assert backoff.waiting(cgroup, Knob.MEMORY_MAX, 5) is None
    backoff.refused(cgroup, Knob.MEMORY_MAX, 5, errno.EINVAL, "no")
    assert backoff.waiting(cgroup, Knob.MEMORY_MAX, 5) is not None


def test_refusals_of_ended_cgroups_are_dropped_and_those_of_living_ones_kept() -> None:
    backoff, living = Backoff(), target("/living")
    for minute in range(60):  # in which a cgroup with a refused write begins and ends
        now_ns = minute * 60 * 10**9
        backoff.refused(target(f"/ended{minute}"), Knob.CPU_QUOTA, now_ns, 22, "no")
        assert backoff.refused(living, Knob.CPU_QUOTA, now_ns, 22, "no").times == minute + 1
    ended = (backoff.waiting(target(f"/ended{minute}"), Knob.CPU_QUOTA, 0) for minute in range(60))
    assert [each is not None for each in ended] == [False] * 49 + [True] * 11


def test_refusals_of_many_ended_cgroups_are_dropped_early() -> None:
    backoff = Backoff()
    for number in range(10_500):
        backoff.refused(target(f"/{number}"), Knob.CPU_QUOTA, 0, 22, "no")
    assert backoff.waiting(target("/499"), Knob.CPU_QUOTA, 0) is None
    assert backoff.waiting(target("/500"), Knob.CPU_QUOTA, 0) is not None


def test_objects_are_created_before_and_removed_after_the_knobs_in_them() -> None:
    def group(path: str, inode: int = 0) -> Target:
        return Target(TargetKind.RESCTRL_GROUP, "/sys/fs/resctrl", inode, path)

    def act(knob: Knob, target: Target, previous: str, value: str) -> Action:
        return Action(
            target=target,
            knob=knob,
            previous=KnobValue(previous),
            value=KnobValue(value),
            reason="test",
        )

    knobs: tuple[Actuator, ...] = (
        control_groups(),
        monitoring_groups(),
        ResctrlMounter(),
        ResctrlMb(),
        ResctrlL3(),
    )
    by_knob = {knob.knob: knob for knob in knobs}
    of_group = group("sweetpoint-be", 5)
    undoing = [
        act(Knob.RESCTRL_MOUNT, group(""), "mounted", "absent"),
        act(Knob.RESCTRL_GROUP, group("sweetpoint-be"), "present 5", "absent"),
        act(
            Knob.RESCTRL_MONITOR,
            group("sweetpoint-be/mon_groups/sweetpoint-x"),
            "present 6",
            "absent",
        ),
        act(Knob.MBA, of_group, "0=20", "0=100"),
        act(Knob.LLC_WAYS, of_group, "0=ff", "0=f"),
    ]
    assert [a.knob for a in order_actions(undoing, by_knob)] == [
        Knob.LLC_WAYS,
        Knob.MBA,
        Knob.RESCTRL_MONITOR,
        Knob.RESCTRL_GROUP,
        Knob.RESCTRL_MOUNT,
    ]
    doing = [act(a.knob, a.target, a.value, a.previous) for a in undoing]
    created = [a.knob for a in order_actions(doing, by_knob)]
    assert created[:2] == [Knob.RESCTRL_MOUNT, Knob.RESCTRL_GROUP]
    assert created[2] is Knob.RESCTRL_MONITOR
    assert ResctrlMb().phase(KnobValue("0=100"), KnobValue("0=20")) is Phase.TIGHTEN
