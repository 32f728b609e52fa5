# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a tenant can do with cgroups of its own: it stays blamed, squeezed and counted."""

from collections.abc import Iterator
from dataclasses import replace
import os
from pathlib import Path

import pytest

from controller.core.model import CgroupId, QosClass, Workload
from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.bpf.btf import Btf
from controller.probes.bpf.loader import load
from controller.probes.cgroup_moves import MoveProbe
from controller.probes.sched import SchedProbe
from controller.probes.sched_program import sched_spec
from tests.kernel.groups import Groups
from tests.kernel.loads import Load, loads

pytestmark = pytest.mark.kernel

CPU = max(os.sched_getaffinity(0))
DEEP = "/".join(["d"] * 64)


@pytest.fixture(params=[True, False], ids=["typed", "untyped"])
def probe(request: pytest.FixtureRequest) -> Iterator[SchedProbe]:
    loaded = SchedProbe(cpus=max(possible_cpus()) + 1, typed=request.param)
    yield loaded
    loaded.close()


@pytest.fixture
def groups(cgroup_root: Path, cgroup_layout: CgroupLayout, probe: SchedProbe) -> Groups:
    return Groups(cgroup_root, cgroup_layout, probe)


def test_work_nested_64_deep_is_counted_and_blamed(probe: SchedProbe, groups: Groups) -> None:
    service, tenant = groups.make("service", latency=True), groups.make("tenant", latency=False)
    deep = groups.make(f"tenant/{DEEP}")
    with loads([Load(service, "bursts", CPU), Load(deep, "hog", CPU)], seconds=2) as running:
        running.work()
        reading, spent = probe.poll(), running.schedstat(tenant)
    assert groups.sample(reading, tenant).oncpu_ns == pytest.approx(spent.oncpu_ns, rel=0.05)
    inflicted_ns = groups.sample(reading, service).wait_inflicted_ns
    assert inflicted_ns is not None and inflicted_ns > 20_000_000
    by_others_ns = sum(b.wait_ns for b in reading.blame if b.culprit is None and b.known)
    assert groups.blame(reading, service, tenant) >= 0.9 * (inflicted_ns - by_others_ns)


def test_work_below_more_levels_than_are_searched_is_unknown_and_not_system(
    probe: SchedProbe, groups: Groups
) -> None:
    first = probe.poll()
    deep = groups.make(f"outer/{DEEP}", latency=False)
    with loads([Load(deep, "hog", CPU)], seconds=1) as running:
        running.work()
        last, spent = probe.poll(), running.schedstat(deep)
    assert groups.sample(last, deep).oncpu_ns == 0
    unknown_ns = last.unknown_oncpu_ns - first.unknown_oncpu_ns
    assert unknown_ns == pytest.approx(spent.oncpu_ns, rel=0.05)


def test_a_move_into_a_cgroup_64_deep_is_one_into_its_workload(
    cgroup_layout: CgroupLayout, cgroup_root: Path
) -> None:
    tenant = cgroup_root / "tenant"
    deep = tenant / DEEP
    deep.mkdir(parents=True)
    cgroup = CgroupId(cgroup_layout.hierarchy, tenant.stat().st_ino)
    path = f"/{tenant.relative_to(cgroup_layout.mount)}"
    probe = MoveProbe(cgroup_layout)
    try:
        probe.set_workloads([Workload("tenant", cgroup, path, QosClass.BE, "", "")])
        probe.poll()
        with loads([Load(deep, "idle")], seconds=0.1):
            moves = probe.poll()
    finally:
        probe.close()
    assert moves.complete
    assert [move.cgroup for move in moves.moves if move.cgroup == cgroup] == [cgroup]


@pytest.mark.parametrize("typed", [True, False])
def test_the_search_by_ids_of_kernels_before_6_1_passes_the_verifier(typed: bool) -> None:
    spec = sched_spec(Btf(), cpus=1, max_slots=8, max_latency=1, blame=True)
    old = replace(spec, defines={**spec.defines, "ANCESTOR_IDS": 1}, typed=typed)
    with load(old) as loaded:
        assert loaded.untyped == ("" if typed else "not requested")
