# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""sched-idle on the cgroup above best-effort work has an effect that it has not on the work.

Where it is placed does not depend on the clock; what a service gains by it does.
"""

from pathlib import Path
import time

import pytest

from actuators.executor import Executor
from controller.core.model import CgroupId, Knob, QosClass, Target, Workload
from controller.host.facts import CgroupLayout
from controller.workloads.knob_placement import KnobPlacer
from tests.kernel.knobs import action, executor, target_of
from tests.kernel.loads import Load, loads

pytestmark = pytest.mark.kernel


class Node:
    """A level with a service and one with two best-effort workloads."""

    def __init__(self, layout: CgroupLayout, root: Path, state_dir: Path) -> None:
        self.layout, self.root, self.state_dir = layout, root, state_dir
        self.besteffort = self._make("besteffort")
        self._make("burstable")
        self.service = self._make("burstable/pod-web")
        self.pods = [self._make(f"besteffort/pod-{name}") for name in ("one", "two")]

    def _make(self, name: str) -> Path:
        path = self.root / name
        path.mkdir()
        if self.layout.version == "v2" and "/" not in name:
            (path / "cgroup.subtree_control").write_text("+cpu")
        return path

    def workloads(self) -> tuple[Workload, ...]:
        classes = {self.service: QosClass.LS} | dict.fromkeys(self.pods, QosClass.BE)
        found = []
        for path, qos in classes.items():
            target = target_of(self.layout, path)
            cgroup = CgroupId(target.scope, target.id)
            found.append(Workload(path.name, cgroup, target.path, qos, path.name, ""))
        return KnobPlacer(self.layout).place(tuple(found), 0)

    def idle_target(self) -> Target:
        targets = {w.idle_at for w in self.workloads() if w.qos is QosClass.BE}
        assert len(targets) == 1
        target = targets.pop()
        assert target is not None
        return target


@pytest.fixture
def node(cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path) -> Node:
    return Node(cgroup_layout, cgroup_root, tmp_path)


def make_idle(agent: Executor, *targets: Target) -> None:
    readings = [r for r in agent.read(targets) if r.knob is Knob.SCHED_IDLE]
    wanted = [action(r.target, r.knob, r.value, "1") for r in readings]
    assert [o.applied for o in agent.execute(wanted, now_ns=0)] == ["1"] * len(targets)


@pytest.mark.thorough
def test_idle_is_placed_on_the_parent_and_restored(node: Node) -> None:
    def marked() -> set[str]:
        files = node.root.rglob("cpu.idle")
        return {str(f.parent.relative_to(node.root)) for f in files if f.read_text() == "1\n"}

    agent = executor(node.layout, node.state_dir)
    make_idle(agent, node.idle_target())
    assert marked() == {"besteffort"}
    assert agent.restore_all().clean
    assert marked() == set()


@pytest.mark.timed
def test_idle_has_an_effect_on_the_parent_only(node: Node) -> None:
    pods = [target_of(node.layout, pod) for pod in node.pods]
    agent = executor(node.layout, node.state_dir)
    make_idle(agent, *pods)
    on_the_pods = share_of_service(node)
    assert agent.restore_all().clean
    make_idle(agent, node.idle_target())
    on_the_parent = share_of_service(node)
    print(f"the service's share: {on_the_pods:.1%} idle on pods, {on_the_parent:.1%} on the parent")
    assert on_the_pods < 0.6
    assert on_the_parent > 0.9


def share_of_service(node: Node) -> float:
    """Return the share of the service of one CPU on which all three are always runnable."""
    cgroups = (node.service, *node.pods)
    with loads([Load(cgroup, "hog", 0) for cgroup in cgroups]) as running:
        running.start()
        time.sleep(0.1)
        before = [running.schedstat(cgroup).oncpu_ns for cgroup in cgroups]
        time.sleep(0.6)
        after = [running.schedstat(cgroup).oncpu_ns for cgroup in cgroups]
    used = [late - early for late, early in zip(after, before, strict=True)]
    return used[0] / sum(used)
