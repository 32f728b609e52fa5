# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Control groups in the resctrl of the kernel: values, hardware limits, tasks, other programs."""

from collections.abc import Callable, Iterator
import errno
from pathlib import Path
import subprocess
import sys

import pytest

from actuators.base import Restored
from actuators.executor import Executor
from actuators.resctrl.fs import Group
from actuators.resctrl.tasks import TaskMover
from controller.core.decision import Failure, Outcome
from controller.core.model import Knob, Target, TargetKind
from controller.core.settings import MbaUnit
from controller.host.facts import CgroupLayout
from controller.host.resctrl import RESCTRL_DIR
from controller.probes.cgroup_moves import Move, Moves
from controller.reconcilers.resctrl.control_group import ControlGroups
from tests.kernel.knobs import action, executor
from tests.support.cgroups import remove_cgroup
from tests.vm.guest.resctrl import (
    CONFIG,
    GROUP,
    OURS,
    best_effort,
    group_of,
    groups,
    is_mounted,
    move,
    sleepers,
)

pytestmark = pytest.mark.vm

SECOND = 1_000_000_000
GROUP_TARGET = Target(TargetKind.RESCTRL_GROUP, str(RESCTRL_DIR), 0, GROUP)

Restart = Callable[[], Executor]


@pytest.fixture
def batch() -> Iterator[Path]:
    """A cgroup of best-effort work."""
    cgroup = Path("/sys/fs/cgroup/sweetpoint-test-batch")
    cgroup.mkdir()
    yield cgroup
    remove_cgroup(cgroup)


def create_group(agent: Executor) -> Target:
    create = action(GROUP_TARGET, Knob.RESCTRL_GROUP, "absent", "present")
    (outcome,) = agent.execute([create], now_ns=0)
    assert (outcome.failure, outcome.foreign) == (None, None), outcome
    inode = OURS.stat().st_ino
    assert outcome.applied == f"present {inode}"
    return GROUP_TARGET._replace(id=inode)


def target_of(name: str) -> Target:
    path = RESCTRL_DIR / name
    return Target(TargetKind.RESCTRL_GROUP, str(RESCTRL_DIR), path.stat().st_ino, name)


class Writes:
    """Writes one knob of one group; each write is later than the back-off of the one before."""

    def __init__(self, agent: Executor, target: Target, knob: Knob) -> None:
        self.agent, self.target, self.knob, self.now_ns = agent, target, knob, 0

    def __call__(self, previous: str, value: str) -> Outcome:
        self.now_ns += 100 * SECOND
        wish = action(self.target, self.knob, previous, value)
        (outcome,) = self.agent.execute([wish], now_ns=self.now_ns)
        return outcome

    def refused(self, previous: str, value: str) -> str:
        outcome = self(previous, value)
        assert (outcome.failure, outcome.errno) == (Failure.REFUSED, errno.EINVAL), outcome
        assert outcome.applied == previous
        return outcome.message


def test_values_as_written_and_as_the_kernel_rounds_them(
    resctrl: Path, agent: Executor, tmp_path: Path
) -> None:
    before = groups()
    group = create_group(agent)
    set_mb, set_l3 = Writes(agent, group, Knob.MBA), Writes(agent, group, Knob.LLC_WAYS)
    assert set_mb("0=100", "0=15").applied == "0=20"
    # The kernel pads numbers.
    assert "MB:0= 20" in (OURS / "schemata").read_text()
    assert set_mb("0=20", "0=70").applied == "0=70"
    assert "out of range [10,100]" in set_mb.refused("0=70", "0=9")
    assert "out of range [10,100]" in set_mb.refused("0=70", "0=101")
    # An unknown domain: the kernel gives no reason, so the message has only the error number.
    assert set_mb.refused("0=70", "0=50;1=50").endswith("Invalid argument")

    assert set_l3("0=7ff", "0=3").applied == "0=3"
    assert "non-consecutive 1-bits" in set_l3.refused("0=3", "0=5")
    assert "out of range" in set_l3.refused("0=3", "0=fff")
    assert "(" in set_l3.refused("0=3", "0=0")
    assert set_l3("0=3", "0=30").applied == "0=30"
    assert {r.knob: r.value for r in agent.read([group])} == {
        Knob.MBA: "0=70",
        Knob.LLC_WAYS: "0=30",
    }
    report = agent.restore_all()
    assert report.clean
    assert groups() == before
    assert not list((tmp_path / "journal").iterdir())


def test_the_next_process_recognises_a_value_that_the_kernel_rounded(
    resctrl: Path, agent: Executor, cgroup_layout: CgroupLayout, tmp_path: Path
) -> None:
    RESCTRL_DIR.joinpath("runtime").mkdir()
    before = groups()
    adopted = target_of("runtime")

    def dies(step: str) -> None:
        if step.startswith("after write"):
            raise KeyboardInterrupt

    dying = executor(cgroup_layout, tmp_path, dies)
    with pytest.raises(KeyboardInterrupt):
        Writes(dying, adopted, Knob.MBA)("0=100", "0=15")
    assert "MB:0= 20" in groups()["runtime"]
    report = executor(cgroup_layout, tmp_path).restore_all()
    assert [r.result for r in report.results] == [Restored.RESTORED]
    assert groups() == before


def test_the_root_group_is_never_written(resctrl: Path, agent: Executor) -> None:
    root = target_of(".")._replace(path="")
    assert {r.value for r in agent.read([root])} == {"0=100", "0=7ff"}
    with pytest.raises(ValueError, match="root group"):
        Writes(agent, root, Knob.MBA)("0=100", "0=50")
    assert "MB:0=100" in groups()[RESCTRL_DIR.name]


def test_exhaustion_of_closids_and_recovery(
    resctrl: Path, agent: Executor, cgroup_layout: CgroupLayout, batch: Path
) -> None:
    control = ControlGroups(CONFIG, agent, cgroup_layout)
    assert control.facts is not None
    assert (control.facts.mba_unit, control.facts.mba_step) == (MbaUnit.PERCENT, 10)
    assert (control.facts.llc_ways, control.facts.bandwidth) == (11, True)
    control.set_workloads((best_effort(batch),))
    others = 0
    try:
        while True:
            (resctrl / f"other{others}").mkdir()
            others += 1
    except OSError as error:
        assert error.errno == errno.ENOSPC
    before = groups()
    control.reconcile(0, None)
    assert "Out of CLOSIDs" in control.state.problem
    assert not control.state.present
    assert control.targets(enforcing=True) == ()
    (resctrl / "other3").rmdir()
    before.pop("other3")
    control.reconcile(10 * SECOND, None)
    assert control.state.present, control.state
    assert control.state.problem == ""
    assert OURS.exists()
    assert agent.restore_all().clean
    assert groups() == before


def test_tasks_are_kept_in_the_group(
    resctrl: Path,
    agent: Executor,
    cgroup_layout: CgroupLayout,
    batch: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for directory in (resctrl / "runtime", resctrl / "mon_groups/foreign"):
        directory.mkdir()
    with sleepers(6) as pids, threaded() as many:
        mine, classed, watched, late, leaver, other = pids
        move([mine, classed, watched, leaver, many], batch)
        (resctrl / "runtime/tasks").write_text(str(classed))
        (resctrl / "mon_groups/foreign/tasks").write_text(str(watched))
        threads = [int(p.name) for p in Path(f"/proc/{many}/task").iterdir()]
        assert len(threads) == 4
        control = ControlGroups(CONFIG, agent, cgroup_layout)
        work = best_effort(batch)
        control.set_workloads((work,))
        control.reconcile(0, None)
        assert {group_of(tid) for tid in (mine, leaver, *threads)} == {GROUP}
        assert (group_of(classed), group_of(watched), group_of(other)) == ("runtime", "/", "/")
        assert (control.state.tasks, control.state.elsewhere) == (6, 2)
        assert [r.message.count("adopt") for r in caplog.records] == [1]

        # Moves that the probe reports are handled at once.
        move([late], batch)
        move([leaver], Path("/sys/fs/cgroup"))
        moves = (Move(work.cgroup, late, late, True), Move(None, leaver, leaver, True))
        control.reconcile(SECOND // 5, Moves(moves, complete=True))
        assert (group_of(late), group_of(leaver)) == (GROUP, "/")
        # Moves that it does not report are found by the full scan.
        move([late], Path("/sys/fs/cgroup"))
        move([other], batch)
        control.reconcile(SECOND, Moves((), complete=True))
        assert group_of(late) == GROUP
        control.reconcile(61 * SECOND, Moves((), complete=True))
        assert (group_of(late), group_of(other)) == ("/", GROUP)

        assert agent.restore_all().clean
        control.reset()
        assert {group_of(tid) for tid in (mine, other, late, leaver, *threads)} == {"/"}
        assert (group_of(classed), OURS.exists()) == ("runtime", False)
        assert str(watched) in (resctrl / "mon_groups/foreign/tasks").read_text().split()


def test_init_kernel_threads_and_ended_tasks_are_skipped(resctrl: Path, agent: Executor) -> None:
    group = create_group(agent)
    tasks = TaskMover(target_of(".")._replace(path=""), group)
    with sleepers(3) as pids:
        gone = subprocess.Popen(["true"])
        gone.wait()
        with Group(group) as directory:
            assert tasks.write(directory, [pids[0], gone.pid, pids[1]]) == 2
        assert [group_of(pid) for pid in pids] == [GROUP, GROUP, "/"]
        # Init, a kernel thread, and a task that may be moved.
        counts = tasks.reconcile(tasks.poll(), [1, 2, pids[2]], [])
        assert (counts.joined, counts.inside) == (1, 3)
        assert [group_of(pid) for pid in (1, 2, pids[2])] == ["/", "/", GROUP]


def test_an_adopted_group_is_limited_and_restored(
    resctrl: Path, agent: Executor, cgroup_layout: CgroupLayout, batch: Path
) -> None:
    (resctrl / "BestEffort").mkdir()
    (resctrl / "BestEffort/schemata").write_text("MB:0=80\n")
    before = groups()
    config = CONFIG._replace(group="BestEffort", adopted=True)
    control = ControlGroups(config, agent, cgroup_layout)
    with sleepers(1) as (pid,):
        move([pid], batch)
        control.set_workloads((best_effort(batch),))
        control.reconcile(0, None)
        assert group_of(pid) == "/"
        (target,) = control.targets(enforcing=True)
        assert Writes(agent, target, Knob.MBA)("0=80", "0=30").applied == "0=30"
        # A foreign value is kept, and is the new original.
        (resctrl / "BestEffort/schemata").write_text("MB:0=60\n")
        assert Writes(agent, target, Knob.MBA)("0=30", "0=20").foreign == "0=60"
        assert Writes(agent, target, Knob.MBA)("0=60", "0=20").applied == "0=20"
        assert agent.restore_all().clean
    assert groups() == {**before, "BestEffort": before["BestEffort"].replace("80", "60")}


def test_restore_leaves_foreign_values_and_groups(
    resctrl: Path, agent: Executor, cgroup_layout: CgroupLayout, tmp_path: Path, batch: Path
) -> None:
    (resctrl / "runtime").mkdir()
    assert Writes(agent, target_of("runtime"), Knob.LLC_WAYS)("0=7ff", "0=f").applied == "0=f"
    (resctrl / "runtime/schemata").write_text("L3:0=70\n")
    create_group(agent)
    OURS.rmdir()
    OURS.mkdir()
    (result, replaced) = executor(cgroup_layout, tmp_path).restore_all().results
    assert {result.result, replaced.result} == {Restored.FOREIGN}
    assert OURS.exists()
    assert "L3:0=070" in groups()["runtime"]
    # A group of that name that another program created is not used either.
    control = ControlGroups(CONFIG, executor(cgroup_layout, tmp_path), cgroup_layout)
    control.set_workloads((best_effort(batch),))
    control.reconcile(0, None)
    assert "not made by this program" in control.state.problem


def test_a_group_that_is_removed_is_created_three_times_more(
    resctrl: Path, agent: Executor, cgroup_layout: CgroupLayout, batch: Path
) -> None:
    control = ControlGroups(CONFIG, agent, cgroup_layout)
    control.set_workloads((best_effort(batch),))
    made = 0
    for number in range(6):
        control.reconcile(number * 10 * SECOND, None)
        if OURS.exists():
            made += 1
            OURS.rmdir()
    assert made == 4
    assert "left alone" in control.state.problem
    control.reconcile(700 * SECOND, None)
    assert control.state.present
    assert agent.restore_all().clean


def test_our_mount_is_unmounted_unless_shared(
    agent: Executor, cgroup_layout: CgroupLayout, tmp_path: Path
) -> None:
    config = CONFIG._replace(mount=True)
    assert not is_mounted()
    control = ControlGroups(config, agent, cgroup_layout)
    assert is_mounted()
    assert control.facts is not None
    assert agent.restore_all().clean
    assert not is_mounted()

    ControlGroups(config, agent, cgroup_layout)
    (RESCTRL_DIR / "mon_groups/foreign").mkdir()
    (result,) = executor(cgroup_layout, tmp_path).restore_all().results
    try:
        assert result.result is Restored.FOREIGN
        assert is_mounted()
    finally:
        subprocess.run(["umount", RESCTRL_DIR], check=True)


class threaded:
    """A process of four threads; entering the context returns its PID."""

    SOURCE = "import threading, time\nfor _ in range(3):\n"
    SOURCE += "    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    SOURCE += "print(flush=True)\ntime.sleep(1000)\n"

    def __enter__(self) -> int:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", self.SOURCE], stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()
        return self.process.pid

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
