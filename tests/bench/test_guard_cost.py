# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CPU time that the memory guard adds to a tick with a thousand workloads."""

from contextlib import ExitStack
from pathlib import Path
import statistics
import time

import pytest

from actuators.executor import Executor
from actuators.journal import Journal
from actuators.oom_order import OomOrder
from controller.core.model import CgroupId, QosClass, Workload
from controller.host.facts import CgroupLayout
from controller.host.memory import find_memory
from controller.probes.memory_use import MemoryMeter
from controller.reconcilers.oom_order import OomReconciler
from tests.kernel.scored import Scored
from tests.support.cgroups import remove_cgroup

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

SERVICES, BATCH, BUSY, TICKS = 100, 900, 20, 500
TICK_NS = 200_000_000


@pytest.mark.parametrize("closely", [False, True])
def test_cpu_time_of_the_memory_guard_per_tick(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path, closely: bool
) -> None:
    memory = find_memory(cgroup_layout.unified)
    assert memory.mount is not None
    below = memory.mount / cgroup_root.relative_to(cgroup_layout.mount)
    names = [f"web{n}" for n in range(SERVICES)] + [f"job{n}" for n in range(BATCH)]
    workloads = []
    with ExitStack() as stack:
        if below != cgroup_root:
            stack.callback(remove_cgroup, below)
        for name in names:
            for tree in dict.fromkeys((cgroup_root, below)):
                (tree / name).mkdir(parents=True, exist_ok=True)
            cgroup = cgroup_root / name
            id_ = CgroupId(cgroup_layout.hierarchy, cgroup.stat().st_ino)
            qos = QosClass.LS if name.startswith("web") else QosClass.BE
            path = "/" + str(cgroup.relative_to(cgroup_layout.mount))
            workloads.append(Workload(name, id_, path, qos, name, "default"))
        for name in names[-BUSY:]:
            stack.callback(Scored(17, cgroup_root / name).end)
        order = OomOrder(cgroup_layout, tmp_path)
        executor = Executor(Journal(tmp_path / "journal"), [order])
        reconciler, meter = OomReconciler(executor, order), MemoryMeter(memory)
        stack.callback(executor.restore_all)
        reconciler.reconfigure(True)
        reconciler.set_workloads(workloads)
        meter.reconfigure(True, None, 0)
        meter.set_workloads(workloads)
        meter.closely = closely
        used_ns = []
        for tick in range(TICKS):
            begin_ns = time.thread_time_ns()
            meter.poll(tick * TICK_NS)
            reconciler.reconcile(tick * TICK_NS, None)
            used_ns.append(time.thread_time_ns() - begin_ns)
        first, steady = used_ns[:300], sorted(used_ns[300:])
    print(
        f"\n{len(names)} workloads, memory guard {'closely' if closely else 'at rest'}: CPU time "
        f"per tick median {statistics.median(steady) / 1e6:.2f} ms, "
        f"p99 {steady[int(len(steady) * 0.99)] / 1e6:.2f} ms; while it looks at all for the first "
        f"time median {statistics.median(first) / 1e6:.2f} ms, most {max(first) / 1e6:.2f} ms"
    )
