# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""After a crash at any step every knob can be restored to its original value.

A process executes some ticks on real cgroups and is killed by SIGKILL at the first step, then in
another run at the second, and so on. After each crash another process restores.
"""

from collections.abc import Callable, Iterable, Sequence
import itertools
from pathlib import Path

import pytest

from actuators.base import Restored, Trace
from controller.core.decision import Action, Failure
from controller.core.model import Knob
from controller.host.facts import CgroupLayout
from tests.kernel.crashes import assert_restorable, at_steps, die_at, wait_for_removed_cgroups
from tests.kernel.knobs import (
    action,
    dump,
    executor,
    make_child,
    set_quota,
    set_weight,
    target_of,
)
from tests.support.cgroups import remove_cgroup

pytestmark = pytest.mark.kernel

CHILDREN = ("a", "b", "c")


def build_tree(root: Path) -> None:
    """Make a limited parent and three children: with quota and burst, with a weight, default."""
    be = make_child(root, "be")
    set_quota(be, 80_000, 100_000)
    set_weight(be, 700)
    for name in CHILDREN:
        make_child(be, name)
    set_quota(be / "a", 20_000, 100_000, 10_000)
    set_weight(be / "a", 512)
    set_weight(be / "b", 77)


def ticks(layout: CgroupLayout, root: Path) -> list[list[Action]]:
    """Return three ticks: squeeze all, squeeze further with other periods, release some."""
    quotas = {
        "be": ["80000 100000 0", "15000 100000 0", "2000 10000 0", "80000 100000 0"],
        "be/a": ["20000 100000 10000", "10000 100000 5000", "1000 10000 0", "1500 10000 0"],
        "be/b": ["max 100000 0", "5000 50000 0", "1000 10000 0", "max 100000 0"],
    }
    idle = {
        0: {"be": ("0 700", "1"), "be/b": ("0 77", "1")},
        2: {"be/b": ("1", "0 77")},
    }
    plan: list[list[Action]] = []
    for tick in range(3):
        actions = [
            action(target_of(layout, root / path), Knob.CPU_QUOTA, values[tick], values[tick + 1])
            for path, values in quotas.items()
        ]
        for path, step in idle.get(tick, {}).items():
            actions.append(action(target_of(layout, root / path), Knob.SCHED_IDLE, *step))
        plan.append(actions)
    return plan


def work(
    layout: CgroupLayout, state_dir: Path, plan: Sequence[Sequence[Action]]
) -> Callable[[Trace], None]:
    """Return a function that executes all ticks and then restores, as the agent on SIGTERM."""

    def body(trace: Trace) -> None:
        agent = executor(layout, state_dir, trace)
        for now_ns, actions in enumerate(plan):
            outcomes = agent.execute(actions, now_ns=now_ns)
            assert all(o.failure in (None, Failure.GONE) for o in outcomes), outcomes
            assert not any(o.foreign for o in outcomes), outcomes
        assert agent.restore_all().clean

    return body


def vanish(root: Path) -> None:
    (root / "be/b").rmdir()


def recreate(root: Path) -> None:
    vanish(root)
    make_child(root / "be", "b")


def test_killed_at_some_steps(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    names = kill_at_steps(cgroup_layout, cgroup_root, tmp_path, steps=itertools.count(0, 7))
    assert len({name.partition("=")[0] for name in names}) >= 5


@pytest.mark.thorough
@pytest.mark.parametrize("meanwhile", [None, vanish, recreate])
def test_killed_at_every_step(
    cgroup_layout: CgroupLayout,
    cgroup_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[Path], None] | None,
) -> None:
    if meanwhile is not None:
        wait_for_removed_cgroups(monkeypatch)
    names = kill_at_steps(cgroup_layout, cgroup_root, tmp_path, meanwhile)
    # The steps include kernel writes, journal writes before them and journal removals after them.
    assert len([name for name in names if name.startswith("before write")]) > 20
    assert len([name for name in names if name == "before journal rename"]) > 10
    assert len([name for name in names if name == "before journal remove"]) >= 4


def kill_at_steps(
    layout: CgroupLayout,
    above: Path,
    scratch: Path,
    meanwhile: Callable[[Path], None] | None = None,
    steps: Iterable[int] | None = None,
) -> list[str]:
    """Kill at every step or at each of *steps*, do *meanwhile*, restore and compare."""

    def crash(number: int) -> str | None:
        root = make_child(above, f"n{number}")
        state_dir = scratch / str(number)
        build_tree(root)
        before = dump(root)
        step = die_at(number, work(layout, state_dir, ticks(layout, root)))
        if meanwhile is not None:
            meanwhile(root)
            before = {k: v for k, v in before.items() if not k.startswith("be/b/")}
            before |= {f"be/b/{k}": v for k, v in dump(root / "be/b").items()}
        assert_restorable(layout, state_dir, step)
        assert dump(root) == before, step
        remove_cgroup(root)
        return step

    return at_steps(crash, steps)


@pytest.mark.thorough
def test_killed_again_during_the_restore(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    def restore(trace: Trace) -> None:
        executor(cgroup_layout, state_dir, trace).restore_all()

    for first in range(3, 90, 6):
        build_tree(cgroup_root)
        state_dir = tmp_path / str(first)
        before = dump(cgroup_root)
        plan = ticks(cgroup_layout, cgroup_root)
        assert die_at(first, work(cgroup_layout, state_dir, plan))
        # Each restore is killed one step later than the one before, until one completes.
        at_steps(lambda second: die_at(second, restore))
        assert_restorable(cgroup_layout, state_dir, first)
        assert dump(cgroup_root) == before, first
        remove_cgroup(cgroup_root / "be")


def test_a_damaged_record_does_not_block_the_restore_of_others(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    build_tree(cgroup_root)
    before = dump(cgroup_root)
    executor(cgroup_layout, tmp_path).execute(ticks(cgroup_layout, cgroup_root)[0], now_ns=0)
    assert dump(cgroup_root) != before
    victim = target_of(cgroup_layout, cgroup_root / "be/b").id
    (path,) = (tmp_path / "journal").glob(f"cpu.quota.*.{victim}.*.json")
    path.write_bytes(path.read_bytes()[:40])
    report = executor(cgroup_layout, tmp_path).restore_all()
    bad = path.with_suffix(".bad")
    assert [r.subject for r in report.results if r.result is Restored.UNKNOWN] == [str(bad)]
    assert not report.clean
    after = dump(cgroup_root)
    assert {k for k in after if after[k] != before[k]} <= {
        f"be/b/{name}" for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.max")
    }
    assert after != before
