# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Static isolation in cpusets of cgroup v2: from kubelet's file to the level, and back."""

from collections.abc import Iterator
import json
from pathlib import Path

import pytest

from controller.agent.knob_targets import KnobTargets
from controller.core.model import CgroupId, Knob, QosClass, Snapshot, Workload
from controller.core.planner import Planner
from controller.host import exclusive_cpus
from controller.host.exclusive_cpus import SharedCpus
from controller.host.facts import CgroupLayout
from controller.workloads.changes import diff_workloads
from tests.kernel.knobs import executor, make_child, target_of
from tests.support.cgroups import remove_cgroup
from tests.support.loops.closed_loop import TICK_NS, make_settings
from tests.vm.guest.resctrl import sleepers

pytestmark = pytest.mark.vm


@pytest.fixture
def level() -> Iterator[Path]:
    """The level of BestEffort pods with two pods, of which the second has a set of its own."""
    root = make_child(Path("/sys/fs/cgroup"), "sweetpoint-test-isolation")
    level = make_child(root, "besteffort")
    (level / "one").mkdir()
    (level / "two").mkdir()
    (level / "two/cpuset.cpus").write_text("1")
    yield level
    remove_cgroup(root)


def cpus(cgroup: Path, name: str = "cpuset.cpus.effective") -> str:
    return (cgroup / name).read_text().strip()


def test_best_effort_pods_leave_exclusive_cpus_and_get_them_back_after_a_kill(
    cgroup_layout: CgroupLayout, level: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exclusive_cpus, "_POLL_NS", 0)
    whole = cpus(level)
    assert whole.startswith("0-"), "the guest has several CPUs"
    last = whole.partition("-")[2]
    state = tmp_path / "cpu_manager_state"

    def give(exclusive: str, shared: str) -> None:
        entries = {"uid": {"web": exclusive}}
        text = {"policyName": "static", "defaultCpuSet": shared, "entries": entries}
        state.write_text(json.dumps(text))

    path = "/" + str((level / "one").relative_to(cgroup_layout.mount))
    id_ = CgroupId(cgroup_layout.hierarchy, (level / "one").stat().st_ino)
    pod = Workload("job", id_, path, QosClass.BE, "job", "default")
    pod = pod._replace(quota_at=target_of(cgroup_layout, level))
    targets = KnobTargets()
    targets.set_workloads((pod,), diff_workloads((), (pod,)))
    targets.isolate()
    agent = executor(cgroup_layout, tmp_path)
    planner, shared = Planner(make_settings(), (pod,)), SharedCpus(state)
    now_ns = 0

    def tick() -> None:
        nonlocal now_ns
        now_ns += TICK_NS
        readings = agent.read(targets.select(agent.held()), {Knob.CPUSET})
        plan = planner.step(
            Snapshot(
                time_ns=now_ns, age_ns=0, workloads=(), knobs=readings, shared_cpus=shared.poll()
            ),
            (),
        )
        moves = [each for each in plan.actions if each.knob is Knob.CPUSET]
        outcomes = agent.execute(moves, now_ns=now_ns)
        assert [each.message for each in outcomes if each.failure is not None] == []
        planner.settle(outcomes)

    with sleepers(1) as (task,):
        (level / "one/cgroup.procs").write_text(str(task))
        tick()
        assert cpus(level, "cpuset.cpus") == "" and not agent.held()
        give(exclusive="1", shared="0")
        tick()
        rest = "0" if last == "1" else "0,2" if last == "2" else f"0,2-{last}"
        assert cpus(level, "cpuset.cpus") == rest
        assert cpus(level / "one") == rest
        assert cpus(level / "two") == rest, "a set outside that of the level counts for nothing"
        assert (level / "one/cgroup.procs").read_text().split() == [str(task)]
        # kubelet and runc may still write what they want.
        (level / "two/cpuset.cpus").write_text("0-1")
        assert cpus(level / "two") == "0"
        give(exclusive="0", shared="1")
        tick()
        assert cpus(level / "one") == ("1" if last == "1" else f"1-{last}")
        give(exclusive="", shared=whole)
        tick()
        assert not agent.held()
        assert cpus(level / "one") == whole
        # A process that was killed leaves its journal only.
        give(exclusive="1", shared="0")
        tick()
        assert len(agent.held()) == 1 and cpus(level / "one") == rest
        assert executor(cgroup_layout, tmp_path).restore_all().clean
        assert cpus(level / "one") == cpus(level) == whole
        assert cpus(level / "two") == "0-1"
        assert not list((tmp_path / "journal").iterdir())
    # Without tasks the file can be empty again.
    agent = executor(cgroup_layout, tmp_path)
    tick()
    assert cpus(level) == rest
    assert executor(cgroup_layout, tmp_path).restore_all().clean
    assert cpus(level, "cpuset.cpus") == ""
