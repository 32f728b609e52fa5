# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The sampler over all probes, with more workloads than slots."""

from collections.abc import Iterator
import contextlib
from pathlib import Path

import pytest

from actuators.executor import Executor
from actuators.journal import Journal
from controller.agent.sampler import Sampler
from controller.config.sections.knobs import ResctrlConfig
from controller.core.model import CgroupId, QosClass, Workload
from controller.host.facts import CgroupLayout
from controller.probes import slots
from controller.probes.sched import MAX_SLOTS
from controller.reconcilers.resctrl.monitor import ResctrlMonitor

pytestmark = pytest.mark.kernel

MAX_WORKLOADS = MAX_SLOTS - 3


@pytest.fixture
def sampler(cgroup_layout: CgroupLayout, tmp_path: Path) -> Iterator[Sampler]:
    executor = Executor(Journal(tmp_path), ())
    off = ResctrlConfig(
        manage=False, mount=False, group="", adopted=False, monitor=False, rmid_reserve=0
    )
    monitor = ResctrlMonitor(off, executor, cgroup_layout)
    with contextlib.closing(Sampler(cgroup_layout, {}, monitor)) as sampler:
        yield sampler


def test_a_workload_without_a_slot_is_measured_as_soon_as_another_is_removed(
    sampler: Sampler, cgroup_layout: CgroupLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "_REUSE_AFTER_NS", 0)
    crowd = tuple(
        Workload(
            name=f"w{number}",
            cgroup=CgroupId(cgroup_layout.hierarchy, 2**40 + number),  # of no cgroup
            path=f"/none-{number}",
            qos=QosClass.BE,
            service="",
            profile="",
        )
        for number in range(MAX_WORKLOADS + 1)
    )

    def measured() -> set[CgroupId]:
        return {sample.cgroup for sample in sampler.poll().workloads}

    sampler.set_workloads(crowd)
    assert measured() == {workload.cgroup for workload in crowd[:-1]}
    sampler.set_workloads(crowd[1:])
    assert measured() == {workload.cgroup for workload in crowd[1:]}
