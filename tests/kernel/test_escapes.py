# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a tenant can do with cgroups of its own: it stays blamed, squeezed and counted."""

from collections.abc import Iterator
from dataclasses import replace
import os
from pathlib import Path
import subprocess
import sys

import pytest

from controller.core.model import CgroupId, QosClass, Workload
from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.bpf.btf import Btf
from controller.probes.bpf.loader import load
from controller.probes.cgroup_moves import MoveProbe
from controller.probes.sched import SchedProbe
from controller.probes.sched_program import sched_spec
from controller.workloads.pods.cgroups import PodCgroups
from tests.kernel.agent import AgentRun, Site
from tests.kernel.groups import Groups
from tests.kernel.loads import Load, loads, schedstat
from tests.kernel.steal import Steal
from tests.support.waiting import eventually

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
    steal = Steal()
    with loads([Load(service, "bursts", CPU), Load(deep, "hog", CPU)], seconds=2) as running:
        running.work()
        reading, spent = probe.poll(), running.schedstat(tenant)
    steal.assert_equal(groups.sample(reading, tenant).oncpu_ns, spent.oncpu_ns, rel=0.05)
    inflicted_ns = groups.sample(reading, service).wait_inflicted_ns
    assert inflicted_ns is not None and inflicted_ns > 20_000_000
    by_others_ns = sum(b.wait_ns for b in reading.blame if b.culprit is None and b.known)
    assert groups.blame(reading, service, tenant) >= 0.9 * (inflicted_ns - by_others_ns)


def test_work_below_more_levels_than_are_searched_is_unknown_and_not_system(
    probe: SchedProbe, groups: Groups
) -> None:
    first, steal = probe.poll(), Steal()
    deep = groups.make(f"outer/{DEEP}", latency=False)
    with loads([Load(deep, "hog", CPU)], seconds=1) as running:
        running.work()
        last, spent = probe.poll(), running.schedstat(deep)
    assert groups.sample(last, deep).oncpu_ns == 0
    unknown_ns = last.unknown_oncpu_ns - first.unknown_oncpu_ns
    steal.assert_equal(unknown_ns, spent.oncpu_ns, rel=0.05)


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


# Works on one CPU and moves itself from cgroup to cgroup, 1,000 times a second if the kernel can.
_MOVER = """
import os, sys, time
seconds, cpu, *cgroups = sys.argv[1:]
os.sched_setaffinity(0, {int(cpu)})
files = [open(cgroup + "/cgroup.procs", "w", buffering=1) for cgroup in cgroups]
files[0].write("0\\n")
print("ready", flush=True)
sys.stdin.readline()
began = time.monotonic()
moves = 0
while (now := time.monotonic()) < began + float(seconds):
    if moves < 1000 * (now - began):
        moves += 1
        files[moves % len(files)].write("0\\n")
print(moves, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("inside_one_workload", [True, False])
def test_work_that_moves_between_cgroups_is_counted_and_blamed(
    inside_one_workload: bool, probe: SchedProbe, groups: Groups
) -> None:
    service = groups.make("service", latency=True)
    if inside_one_workload:
        tenants = [groups.make("tenant", latency=False)]
        places = [groups.make("tenant/one"), groups.make("tenant/two")]
    else:
        tenants = places = [groups.make(name, latency=False) for name in ("one", "two")]
    command = [sys.executable, "-S", "-c", _MOVER, "3", str(CPU), *map(str, places)]
    steal = Steal()
    with (
        loads([Load(service, "bursts", CPU)], seconds=3) as running,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as mover,
    ):
        assert mover.stdin is not None and mover.stdout is not None
        try:
            assert mover.stdout.readline() == "ready\n"
            before_ns, first = schedstat(mover.pid).oncpu_ns, probe.poll()
            mover.stdin.write("go\n")
            mover.stdin.flush()
            running.work()
            moves = int(mover.stdout.readline())
            ran_ns, last = schedstat(mover.pid).oncpu_ns - before_ns, probe.poll()
        finally:
            mover.kill()
    counted_ns = sum(
        (groups.sample(last, path).oncpu_ns or 0) - (groups.sample(first, path).oncpu_ns or 0)
        for path in tenants
    )
    print(f"{moves / 3:.0f} moves per second")
    assert moves > 20
    steal.assert_equal(counted_ns, ran_ns, rel=0.05)
    inflicted_ns = groups.sample(last, service).wait_inflicted_ns
    assert inflicted_ns is not None and inflicted_ns > 20_000_000
    by_others_ns = sum(b.wait_ns for b in last.blame if b.culprit is None and b.known)
    blamed_ns = sum(groups.blame(last, service, path) for path in tenants)
    assert blamed_ns >= 0.9 * (inflicted_ns - by_others_ns)


def test_work_in_a_renamed_cgroup_is_counted(
    probe: SchedProbe, groups: Groups, cgroup_layout: CgroupLayout
) -> None:
    if cgroup_layout.version == "v2":
        pytest.skip("cgroup v2 has no rename")
    tenant = groups.make("tenant", latency=False)
    steal = Steal()
    with loads([Load(tenant, "hog", CPU)], seconds=1) as running:
        renamed = tenant.rename(tenant.with_name("service"))
        running.work()
        spent, reading = running.schedstat(tenant), probe.poll()
    steal.assert_equal(groups.sample(reading, renamed).oncpu_ns, spent.oncpu_ns, rel=0.05)


def test_a_cgroup_named_like_another_pod_belongs_to_the_pod_that_made_it(
    probe: SchedProbe, groups: Groups, cgroup_root: Path
) -> None:
    tenant, service = (f"{digit * 8}-0000-0000-0000-000000000000" for digit in "12")
    own = groups.make(f"kubepods/besteffort/pod{tenant}", latency=False)
    groups.make(f"kubepods/burstable/pod{service}", latency=True)
    for name in (f"pod{service}", f"kubepods/burstable/pod{service}"):
        groups.make(f"kubepods/besteffort/pod{tenant}/{name}")
    pods = PodCgroups(cgroup_root).scan(0)
    assert {pod.path for below in pods.values() for pod in below} == {
        f"/kubepods/besteffort/pod{tenant}",
        f"/kubepods/burstable/pod{service}",
    }
    steal = Steal()
    with loads([Load(own / f"pod{service}", "hog", CPU)], seconds=1) as running:
        running.work()
        reading, spent = probe.poll(), running.schedstat(own)
    steal.assert_equal(groups.sample(reading, own).oncpu_ns, spent.oncpu_ns, rel=0.05)


@pytest.mark.parametrize("number", [1500, pytest.param(5000, marks=pytest.mark.soak)])
def test_a_crowd_of_cgroups_hides_neither_work_nor_services(
    number: int, cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path
) -> None:
    site = Site(cgroup_root, cgroup_layout, tmp_path)
    site.write(
        f'  - {{name: late, cgroup: "{site.path(site.root)}/late-*", '
        "class: latency-sensitive, profile: nginx}\n"
    )
    crowd = [site.root / "batch" / f"c{each:04}" for each in range(number)]
    for path in crowd:
        path.mkdir()

    def metric(name: str, label: str) -> float:
        page = agent.get("/metrics") or ""
        (line,) = [x for x in page.splitlines() if x.startswith(f"{name}{{{label}}} ")] or ["- 0"]
        return float(line.rpartition(" ")[2])

    with (
        loads([Load(crowd[-1], "hog"), Load(site.service, "bursts")], 120) as running,
        AgentRun(site) as agent,
    ):
        agent.ready().enforcing()
        running.start()
        unmeasured = "sweetpoint_workloads_unmeasured"
        assert metric(unmeasured, 'class="best-effort"') >= number - 1021
        late = site.root / "late-1"
        late.mkdir()
        with loads([Load(late, "bursts")], 60) as others:
            others.start()
            oncpu = "sweetpoint_workload_oncpu_seconds_total"
            eventually(
                "a late service is measured",
                lambda: metric(oncpu, 'workload="late:late-1"') > 0.1,
            )
        assert metric(unmeasured, 'class="latency-sensitive"') == 0
        eventually(
            "the work in the crowd is found",
            lambda: metric(oncpu, f'workload="batch:{crowd[-1].name}"') > 0.1,
        )
        assert site.protected()
        state = agent.status()
        print(f"{number} cgroups: tick median {state['tick']['duration_median_ns'] / 1e6:.1f} ms")
        assert state["tick"]["failed"] == 0
        assert agent.stop() == 0


def test_a_crowd_of_new_cgroups_is_taken_little_by_little_and_counted(
    cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path
) -> None:
    site = Site(cgroup_root, cgroup_layout, tmp_path)
    site.write(
        f'  - {{name: late, cgroup: "{site.path(site.root)}/late-*", '
        "class: latency-sensitive, profile: nginx}\n"
    )
    crowd = [site.root / "batch" / f"c{each:04}" for each in range(600)]

    def taken() -> set[str]:
        return {each["name"] for each in agent.status()["workloads"]}

    with AgentRun(site) as agent:
        agent.ready().enforcing()
        before = taken()
        for path in crowd:
            path.mkdir()
        with loads([Load(crowd[-1], "idle")], 60):
            (site.root / "late-1").mkdir()
            first = eventually("some are taken", lambda: len(now := taken()) > 3 and now)
            assert "late:late-1" in first and len(first - before) < len(crowd)
            page = agent.get("/metrics") or ""
            (line,) = (
                each
                for each in page.splitlines()
                if each.startswith('sweetpoint_workloads_unmeasured{class="best-effort"} ')
            )
            assert float(line.rpartition(" ")[2]) > 0
            # What waits is best-effort work, so its processes do not move sched-idle.
            assert site.protected()
            eventually("all are taken", lambda: len(taken()) == len(before) + len(crowd) + 1)
            assert site.protected()
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop() == 0


@pytest.mark.parametrize("typed", [True, False])
def test_the_search_by_ids_of_kernels_before_6_1_passes_the_verifier(typed: bool) -> None:
    spec = sched_spec(Btf(), cpus=1, max_slots=8, max_latency=1, blame=True)
    old = replace(spec, defines={**spec.defines, "ANCESTOR_IDS": 1}, typed=typed)
    with load(old) as loaded:
        assert loaded.untyped == ("" if typed else "not requested")
