# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A class for disks of a service, and iocost, in files of cgroup v2: written and undone."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from actuators.base import Trace
from actuators.io_cost import COST_OFF, COST_ON, IoCost, cost_target
from controller.core.model import CgroupId, Knob, QosClass, Workload
from controller.core.settings import DiskFacts, IoClass
from controller.host.disks import weighted_disks
from controller.host.facts import CgroupLayout
from controller.reconcilers.io_cost import IoCostReconciler
from tests.kernel.crashes import assert_restorable, at_steps, die_at
from tests.kernel.disks import disk_at, made_disks, read_blocks
from tests.kernel.knobs import action, dump, executor, make_child, target_of
from tests.support.cgroups import remove_cgroup
from tests.support.io_class import check_class
from tests.support.loops.closed_loop import make_settings

pytestmark = pytest.mark.vm

# The steps with a lasting effect: a boot has little time.
LASTING = ("after write", "all in force", "after journal remove")


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """The cgroup of a service."""
    root = make_child(Path("/sys/fs/cgroup"), "sweetpoint-test-classes")
    yield make_child(root, "web")
    remove_cgroup(root)


def test_a_class_is_written_given_back_and_undone_after_a_kill(
    cgroup_layout: CgroupLayout, cgroup: Path, tmp_path: Path
) -> None:
    before = dump(cgroup)
    with made_disks(1) as (disk,):
        check_class(
            lambda: executor(cgroup_layout, tmp_path),
            cgroup_layout.hierarchy,
            cgroup_layout.mount,
            cgroup,
            disk.number,
        )
    assert dump(cgroup) == before


@pytest.fixture
def shared(cgroup: Path) -> tuple[Path, Path]:
    """The cgroups of a service and of a job that may have processes."""
    found = cgroup, make_child(cgroup.parent, "job")
    for each in found:
        (each / "cgroup.subtree_control").write_text("-cpu -cpuset -memory -io")
    return found


def workload(cgroup: Path, qos: QosClass) -> Workload:
    path = f"/{cgroup.parent.name}/{cgroup.name}"
    id_ = CgroupId("v2", cgroup.stat().st_ino)
    return Workload(cgroup.name, id_, path, qos, cgroup.name, "default", io_class="gold")


@pytest.mark.parametrize("ours", ["enable=0 ctrl=auto", "enable=0 ctrl=user"])
def test_a_shared_disk_follows_weights_until_a_restore_after_a_kill_at_any_step(
    cgroup_layout: CgroupLayout, shared: tuple[Path, Path], tmp_path: Path, ours: str
) -> None:
    web, job = shared
    disk, mount = disk_at("/dev/vda"), cgroup_layout.mount
    file, actuator, line = mount / "io.cost.qos", IoCost(cgroup_layout), cost_target(disk.number)
    if ours.endswith("user"):
        file.write_text(f"{disk.number} {ours} rpct=90.50 rlat=7777 min=45.00 max=155.00")
    original, before = actuator.read(line), dump(web.parent)
    assert original.startswith(ours)
    settings = replace(make_settings(), io_classes={"gold": IoClass(800)})
    host = replace(settings.host, disks=(DiskFacts(disk.number),))

    def run(state_dir: Path, die: Trace) -> None:
        def trace(step: str) -> None:
            if step.startswith(LASTING):
                die(step)

        agent = executor(cgroup_layout, state_dir, trace)
        reconciler = IoCostReconciler(agent, cgroup_layout)
        reconciler.reconfigure(replace(settings, host=host))
        reconciler.set_workloads([workload(web, QosClass.LS), workload(job, QosClass.BE)])
        for second in range(12):
            reconciler.reconcile(second * 10**9)
        assert actuator.read(line) == COST_ON
        weights = (
            action(target_of(cgroup_layout, each), Knob.IO_WEIGHT, "100", value)
            for each, value in ((web, "800"), (job, "10"))
        )
        assert [each.applied for each in agent.execute(list(weights), now_ns=0)] == ["800", "10"]
        trace("all in force")
        assert agent.restore_all().clean

    def crash(number: int) -> str | None:
        state_dir = tmp_path / str(number)
        step = die_at(number, lambda trace: run(state_dir, trace))
        if step == "all in force":
            assert disk.number in weighted_disks(mount)
            assert (web / "io.weight").read_text().split() == ["default", "800"]
        assert_restorable(cgroup_layout, state_dir, step)
        assert (actuator.read(line), dump(web.parent)) == (original, before), step
        return step

    try:
        # A disk that only one of both has used stays as it is.
        read_blocks(disk, web, 2)
        agent = executor(cgroup_layout, tmp_path)
        alone = IoCostReconciler(agent, cgroup_layout)
        alone.reconfigure(replace(settings, host=host))
        alone.set_workloads([workload(web, QosClass.LS), workload(job, QosClass.BE)])
        for second in range(12):
            alone.reconcile(second * 10**9)
        assert not agent.held()
        read_blocks(disk, job, 2)
        steps = at_steps(crash)
        written = f"after write io.cost.qos={COST_ON}"
        assert {written, "all in force", f"after write io.cost.qos={original}"} <= {*steps}
    finally:
        file.write_text(f"{disk.number} {COST_OFF}")
