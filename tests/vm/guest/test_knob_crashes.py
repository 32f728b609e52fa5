# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Restore after a SIGKILL at every step: resctrl with its groups and tasks, all cgroup v2 files.

A process mounts resctrl, creates a group, moves a task into it, writes all knobs and restores
them. It is killed after each write, and after each record that was removed; then another process
restores, and everything is as before. That the other steps make no difference is tested outside the
guest, ten times faster. Sets of CPUs are killed with odd originals too.
"""

from collections.abc import Callable, Iterator
import mmap
from pathlib import Path
from typing import NamedTuple

import pytest

from actuators.base import Trace
from actuators.resctrl.tasks import TaskMover
from controller.core.decision import Action
from controller.core.model import Knob, Target, TargetKind
from controller.host.facts import CgroupLayout
from controller.host.resctrl import RESCTRL_DIR
from tests.kernel.crashes import assert_restorable, at_steps, die_at
from tests.kernel.disks import made_disks
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
from tests.vm.guest.resctrl import GROUP, group_of, groups, is_mounted, mounted, move, sleepers

pytestmark = pytest.mark.vm

MIB, PAGE = 1 << 20, mmap.PAGESIZE
# These knobs have the names of their files.
FILES = (Knob.CPUSET, Knob.MEMORY_HIGH, Knob.MEMORY_MAX, Knob.IO_WEIGHT, Knob.IO_MAX)
LASTING = ("after write", "after task", "after journal remove")
ROOT = Target(TargetKind.RESCTRL_GROUP, str(RESCTRL_DIR), 0, "")
GROUP_TARGET = ROOT._replace(path=GROUP)


class KnobContext(NamedTuple):
    """The objects that the killed process changes."""

    layout: CgroupLayout
    pod: Path
    disk: str
    task: int

    def dump(self) -> dict[str, str]:
        """Return all state that the process may change."""
        state = dump(self.pod) | groups() | {"mounted": str(is_mounted())}
        return state | {"task": group_of(self.task)}


@pytest.fixture
def context(cgroup_layout: CgroupLayout) -> Iterator[KnobContext]:
    root = make_child(Path("/sys/fs/cgroup"), "sweetpoint-test-crash")
    pod = make_child(root, "pod")
    (pod / "cgroup.subtree_control").write_text("-cpu -cpuset -memory -io")
    set_quota(pod, 80_000, 100_000, 10_000)
    set_weight(pod, 700)
    with made_disks(1) as (disk,), sleepers(1) as (task,):
        made = KnobContext(cgroup_layout, pod, disk.number, task)
        for knob in FILES:
            original, _ = knobs(made)[knob]
            (pod / knob).write_text(original)
        move([task], pod)
        yield made
    remove_cgroup(root)


def knobs(context: KnobContext) -> dict[Knob, tuple[str, str]]:
    """Return the original value of every knob, and another value."""
    return {
        Knob.CPU_QUOTA: ("80000 100000 10000", "5000 10000 5000"),
        Knob.SCHED_IDLE: ("0 700", "1"),
        Knob.CPUSET: ("1,3", "3"),
        Knob.MEMORY_HIGH: (str(80 * MIB + PAGE), str(64 * MIB)),
        Knob.MEMORY_MAX: (str(160 * MIB + PAGE), str(96 * MIB)),
        Knob.IO_WEIGHT: ("333", "10"),
        Knob.IO_MAX: (f"{context.disk} rbps=8193 wiops=500", f"{context.disk} rbps=4096"),
        Knob.MBA: ("0=100", "0=20"),
        Knob.LLC_WAYS: ("0=7ff", "0=3"),
    }


def one_run(context: KnobContext, state_dir: Path, *, mount: bool) -> Callable[[Trace], None]:
    """Return a function that mounts (if *mount*), creates the group, moves a task, writes all
    knobs, and restores.
    """

    def run(trace: Trace) -> None:
        agent = executor(context.layout, state_dir, lasting(trace))

        def do(*actions: Action) -> None:
            outcomes = agent.execute(actions, now_ns=0)
            assert not any(o.failure or o.foreign for o in outcomes), outcomes

        if mount:
            do(action(ROOT, Knob.RESCTRL_MOUNT, "absent", "mounted"))
        do(action(GROUP_TARGET, Knob.RESCTRL_GROUP, "absent", "present"))
        group = GROUP_TARGET._replace(id=(RESCTRL_DIR / GROUP).stat().st_ino)
        tasks = TaskMover(ROOT._replace(id=RESCTRL_DIR.stat().st_ino), group)
        assert tasks.reconcile(tasks.poll(), [context.task], []).joined == 1
        trace("after task")
        pod = target_of(context.layout, context.pod)
        do(
            *(
                action(group if str(knob).startswith("resctrl") else pod, knob, was, value)
                for knob, (was, value) in knobs(context).items()
            )
        )
        assert agent.restore_all().clean

    return run


def lasting(trace: Trace) -> Trace:
    """Return a trace that passes on only the steps with a lasting effect."""

    def filtered(step: str) -> None:
        if step.startswith(LASTING):
            trace(step)

    return filtered


@pytest.mark.parametrize("mount", [False, True])
def test_killed_at_every_step(context: KnobContext, tmp_path: Path, mount: bool) -> None:
    if mount:
        # The later steps are the same as with resctrl mounted by another program.
        first = kill_everywhere(context, tmp_path, mount=True, steps=range(5))
        assert {"after write resctrl.mount=mount", "after write group=mkdir"} <= first
        return
    with mounted():
        (RESCTRL_DIR / "runtime").mkdir()
        seen = kill_everywhere(context, tmp_path, mount=False, steps=None)
    # For every file there was a step at which the process died after writing it.
    written = {s.split()[2].partition("=")[0] for s in seen if s.startswith("after write")}
    files = {
        "cpu.max",
        "cpu.max.burst",
        "cpu.idle",
        "cpu.weight",
        "cpuset.cpus",
        "memory.high",
        "memory.max",
        "io.weight",
    }
    assert written == {"group", "schemata", "io.max", *files}
    assert {"after task", "after write group=rmdir", "after journal remove"} <= seen


def kill_everywhere(
    context: KnobContext, scratch: Path, *, mount: bool, steps: range | None
) -> set[str]:
    """Kill at each of *steps*, or at every step; return the names of these steps."""
    before = context.dump()

    def crash(number: int) -> str | None:
        state_dir = scratch / str(number)
        step = die_at(number, one_run(context, state_dir, mount=mount))
        assert_restorable(context.layout, state_dir, step)
        assert context.dump() == before, step
        return step

    return set(at_steps(crash, steps))


class OddSet(NamedTuple):
    """The original of cpuset.cpus, what replaces it, and the file after a restore."""

    original: str
    ours: str
    after: str
    above: str = ""


ODD_SETS = {
    # The kernel refuses to empty the file of a cgroup with tasks.
    "empty": OddSet("", "1-3", "0-3"),
    "every CPU": OddSet("0-3", "0,2", "0-3"),
    "several ranges": OddSet("0,2-3", "2-3", "0,2-3"),
    "none of the set above": OddSet("2-3", "2", "2-3", above="0-1"),
}


@pytest.mark.parametrize("name", ODD_SETS)
def test_killed_at_every_step_with_an_odd_set_of_cpus(
    context: KnobContext, tmp_path: Path, name: str
) -> None:
    odd, root = ODD_SETS[name], context.pod.parent
    (root / "cpuset.cpus").write_text(odd.above or "\n")

    def crash(number: int) -> str | None:
        pod, state_dir = root / f"odd-{number}", tmp_path / str(number)
        pod.mkdir()
        (pod / "cpuset.cpus").write_text(odd.original or "\n")
        move([context.task], pod)
        before = effective(pod)

        def run(trace: Trace) -> None:
            agent = executor(context.layout, state_dir, lasting(trace))
            target = target_of(context.layout, pod)
            seen = {each.knob: each.value for each in agent.read([target])}[Knob.CPUSET]
            (outcome,) = agent.execute([action(target, Knob.CPUSET, seen, odd.ours)], now_ns=0)
            assert outcome.applied == odd.ours
            assert agent.restore_all().clean

        step = die_at(number, run)
        if number == 0:
            assert (pod / "cpuset.cpus").read_text().strip() == odd.ours, step
        assert_restorable(context.layout, state_dir, step)
        assert (pod / "cpuset.cpus").read_text().strip() == odd.after, step
        assert effective(pod) == before, step
        return step

    written = [step for step in at_steps(crash) if step.startswith("after write")]
    assert len(written) == 2


def effective(cgroup: Path) -> str:
    """Return the CPUs on which the tasks of *cgroup* may run."""
    return (cgroup / "cpuset.cpus.effective").read_text()
