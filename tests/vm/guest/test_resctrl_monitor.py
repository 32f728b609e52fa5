# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Cache use of workloads in the resctrl of the kernel, with counters that the test sets."""

from collections.abc import Iterator
import os
from pathlib import Path
import signal
import subprocess

import pytest

from actuators.executor import Executor
from controller.core.model import CgroupId, Knob, QosClass, Target, TargetKind, Workload
from controller.host.facts import CgroupLayout
from controller.host.resctrl import RESCTRL_DIR
from controller.probes.resctrl import CacheUse
from controller.reconcilers.resctrl.monitor import ResctrlMonitor
from tests.kernel.knobs import action, executor
from tests.support.cgroups import remove_cgroup
from tests.support.waiting import eventually
from tests.vm.guest.resctrl import CONFIG, GROUP, OURS, mounted, move, sleepers

pytestmark = pytest.mark.vm

SECOND = 1_000_000_000
UNIT = 65536
RMIDS = 32
TABLE = Path("/sys/kernel/debug/resctrl_test")
TOP = Path("/sys/fs/cgroup/sweetpoint-test-monitor")
MONITORS = RESCTRL_DIR / "mon_groups"


class Watched:
    """Workloads in cgroups of the test, and the monitor, with simulated time."""

    def __init__(self, layout: CgroupLayout, home: Path) -> None:
        self.agent: Executor = executor(layout, home)
        self.monitor = ResctrlMonitor(CONFIG, self.agent, layout)
        self.workloads: list[Workload] = []
        self._now_ns = SECOND

    def add(self, name: str, qos: QosClass = QosClass.LS) -> Path:
        cgroup = TOP / name
        cgroup.mkdir()
        path = "/" + str(cgroup.relative_to("/sys/fs/cgroup"))
        identity = CgroupId("v2", cgroup.stat().st_ino)
        self.workloads.append(Workload(name, identity, path, qos, name, ""))
        self.monitor.set_workloads(self.workloads)
        return cgroup

    def group(self, cgroup: Path, control: Path = RESCTRL_DIR) -> Path:
        return control / "mon_groups" / f"sweetpoint-{cgroup.stat().st_ino}"

    def read(self, seconds: int = 6) -> dict[str, CacheUse]:
        """Poll once a second of simulated time, and return the last cache use by name."""
        for _ in range(seconds):
            self._now_ns += SECOND
            use = self.monitor.poll(self._now_ns)
        return {w.name: use[w.cgroup] for w in self.workloads if w.cgroup in use}


@pytest.fixture
def watched(cgroup_layout: CgroupLayout, tmp_path: Path) -> Iterator[Watched]:
    TOP.mkdir()
    try:
        with mounted():
            for rmid in range(RMIDS):
                for event in ("llc_occupancy", "mbm_total", "mbm_local"):
                    counter(rmid, event, 0)
            yield Watched(cgroup_layout, tmp_path)
    finally:
        remove_cgroup(TOP)


def counter(rmid: int, event: str, raw: int) -> None:
    (TABLE / str(rmid) / event).write_text(hex(raw))


def rmid_of(group: Path) -> int:
    """Find the RMID of a group: every counter is set to its own RMID and one is read."""
    for rmid in range(RMIDS):
        counter(rmid, "llc_occupancy", rmid)
    (file,) = group.glob("mon_data/*/llc_occupancy")
    return int(file.read_text()) // UNIT


def groups_of(pid: int) -> str:
    return " ".join(Path(f"/proc/{pid}/cpu_resctrl_groups").read_text().split())


def test_counters_belong_to_the_workload(watched: Watched) -> None:
    web, batch = watched.add("web"), watched.add("batch", QosClass.BE)
    with sleepers(2) as pids:
        move(pids[:1], web)
        move(pids[1:], batch)
        assert set(watched.read()) == {"web", "batch"}
        assert groups_of(pids[0]) == f"res:/ mon:{watched.group(web).name}"
        rmid, other = rmid_of(watched.group(web)), rmid_of(watched.group(batch))
        counter(rmid, "llc_occupancy", 700)
        counter(other, "llc_occupancy", 3)
        counter(rmid, "mbm_total", 0xFFFFF0)
        before = watched.read()
        assert before["web"].llc_occupancy_bytes == 700 * UNIT
        assert before["batch"].llc_occupancy_bytes == 3 * UNIT
        # The hardware counter has 24 bits and wraps.
        counter(rmid, "mbm_total", 0x10)
        after = watched.read()
        assert bandwidth(after, "web") - bandwidth(before, "web") == 0x20 * UNIT
        assert bandwidth(after, "batch") == 0
        # Unavailable is neither zero nor an error.
        counter(rmid, "llc_occupancy", 1 << 62)
        counter(rmid, "mbm_total", 1 << 62)
        assert "web" not in watched.read()
        assert watched.monitor.state.errors == 0
        counter(rmid, "llc_occupancy", 5)
        counter(rmid, "mbm_total", 0x12)
        again = watched.read()
        # This kernel assumes that the hardware counts from zero after Unavailable.
        assert bandwidth(again, "web") - bandwidth(after, "web") == 0x12 * UNIT
        counter(rmid, "mbm_total", 1 << 63)
        assert set(watched.read()) == {"batch"}
        assert watched.monitor.state.errors > 0
        assert watched.monitor.state.problem == "web: mon_L3_00/mbm_total_bytes: Error"
        counter(rmid, "mbm_total", 0x12)
        assert bandwidth(watched.read(), "web") == bandwidth(again, "web")
        assert watched.monitor.state.problem == ""


def bandwidth(use: dict[str, CacheUse], name: str) -> int:
    count = use[name].memory_bandwidth_bytes
    assert count is not None
    return count


def test_tasks_that_join_and_leave(watched: Watched) -> None:
    web, out = watched.add("web"), TOP / "out"
    out.mkdir()
    ours = f"res:/ mon:{watched.group(web).name}"
    shell = subprocess.Popen(["sh", "-c", "read x; sleep 1000 & wait"], stdin=subprocess.PIPE)
    try:
        with sleepers(2) as (early, late):
            move([shell.pid, early], web)
            watched.read()
            assert groups_of(early) == groups_of(shell.pid) == ours
            # A child is in the group of its parent from the start.
            assert shell.stdin is not None
            shell.stdin.write(b"\n")
            shell.stdin.flush()
            known = {str(shell.pid), str(early)}
            procs = web / "cgroup.procs"
            new = eventually("a child", lambda: {*procs.read_text().split()} - known)
            child = int(new.pop())
            assert groups_of(child) == ours
            move([late], web)
            move([early], out)
            watched.read()
            assert groups_of(late) == ours
            assert groups_of(early) == "res:/ mon:"
            move([shell.pid, child, late], out)
            watched.read()
            assert groups_of(child) == groups_of(late) == "res:/ mon:"
            # The workload is removed, and its group with it.
            watched.monitor.set_workloads([])
            assert not list(MONITORS.iterdir())
            os.kill(child, signal.SIGKILL)
    finally:
        shell.kill()
        shell.communicate()


def test_services_have_precedence_and_a_reserve_is_left(
    watched: Watched, cgroup_layout: CgroupLayout
) -> None:
    # One RMID belongs to the root group, and 24 are reserved for other programs.
    ours = 7
    config = CONFIG._replace(rmid_reserve=RMIDS - 1 - ours)
    watched.monitor = ResctrlMonitor(config, watched.agent, cgroup_layout)
    with sleepers(10) as pids:
        for number, pid in enumerate(pids):
            move([pid], watched.add(f"job{number}", QosClass.BE))
        watched.read()
        assert len(list(MONITORS.iterdir())) == ours
        assert watched.monitor.state.groups == ours
        assert watched.monitor.state.without_room == 3
        move(pids[:1], watched.add("web"))
        watched.read(12)
        assert watched.group(TOP / "web").exists()
        assert len(list(MONITORS.iterdir())) == ours
        # Another program uses three RMIDs: ours are reduced by three.
        for number in range(3):
            (MONITORS / f"foreign{number}").mkdir()
        watched.read()
        remaining = list(MONITORS.glob("sweetpoint-*"))
        assert len(remaining) == ours - 3
        assert watched.group(TOP / "web") in remaining
        for group in MONITORS.glob("foreign*"):
            group.rmdir()


def test_groups_of_other_programs_are_not_changed(watched: Watched) -> None:
    web = watched.add("web")
    foreign = RESCTRL_DIR / "container"
    foreign.mkdir()
    with sleepers(3) as (first, second, other):
        move([first, second], web)
        for pid in (first, second):
            (foreign / "tasks").write_text(str(pid))
        counter(rmid_of(foreign), "llc_occupancy", 9)
        assert watched.read()["web"].llc_occupancy_bytes == 9 * UNIT
        assert watched.monitor.state.adopted == 1
        assert groups_of(first) == "res:container mon:"
        # With a task of another workload the group's counters cannot be used for this one.
        (foreign / "tasks").write_text(str(other))
        assert watched.read() == {}
        assert watched.monitor.state.elsewhere == 2
        # Tasks in the root group are monitored by us, the others stay in the foreign group.
        (RESCTRL_DIR / "tasks").write_text(str(second))
        assert "web" in watched.read()
        assert groups_of(second) == f"res:/ mon:{watched.group(web).name}"
        assert groups_of(first) == "res:container mon:"
        assert watched.monitor.state.elsewhere == 1
    assert foreign.exists()
    foreign.rmdir()


def test_monitoring_continues_in_the_best_effort_group(watched: Watched) -> None:
    batch = watched.add("batch", QosClass.BE)
    with sleepers(2) as pids:
        move(pids, batch)
        watched.read()
        first = watched.group(batch)
        rmid = rmid_of(first)
        counter(rmid, "mbm_total", 50)
        before = watched.read()
        target = Target(TargetKind.RESCTRL_GROUP, str(RESCTRL_DIR), 0, GROUP)
        create = action(target, Knob.RESCTRL_GROUP, "absent", "present")
        watched.agent.execute([create], now_ns=0)
        for pid in pids:
            (OURS / "tasks").write_text(str(pid))
        watched.read(12)
        second = watched.group(batch, OURS)
        assert groups_of(pids[0]) == f"res:{GROUP} mon:{second.name}"
        assert not first.exists()
        # The count of the old group is kept, and the new group begins at zero.
        counter(rmid_of(second), "mbm_total", 7)
        after = watched.read()
        assert bandwidth(after, "batch") - bandwidth(before, "batch") == 7 * UNIT
        assert watched.agent.restore_all().clean
        assert not OURS.exists()
        watched.monitor.reset()
        watched.read()
        assert watched.group(batch).exists()


def test_a_new_group_inherits_no_count_and_restore_removes_all(
    watched: Watched, cgroup_layout: CgroupLayout, tmp_path: Path
) -> None:
    web = watched.add("web")
    with sleepers(1) as pids:
        move(pids, web)
        watched.read()
        counter(rmid_of(watched.group(web)), "mbm_total", 500)
        before = watched.read()
        # Another program removes the group, so that its RMID may be reused.
        watched.group(web).rmdir()
        assert bandwidth(watched.read(12), "web") == bandwidth(before, "web")
        assert groups_of(pids[0]) == f"res:/ mon:{watched.group(web).name}"
        # As after a crash: another process restores from the journal.
        report = executor(cgroup_layout, tmp_path).restore_all()
        assert report.clean
        assert not list(MONITORS.iterdir())
        assert groups_of(pids[0]) == "res:/ mon:"
