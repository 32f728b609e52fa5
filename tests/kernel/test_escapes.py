# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a tenant can do with cgroups of its own: it stays blamed, squeezed and counted."""

from collections.abc import Iterator
import contextlib
from dataclasses import replace
from pathlib import Path
import subprocess

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
from tests.kernel.groups import Groups, Round
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]

DEEP = "/".join(["d"] * 64)
WAITS = 100


@pytest.fixture(params=[True, False], ids=["typed", "untyped"])
def probe(request: pytest.FixtureRequest) -> Iterator[SchedProbe]:
    loaded = SchedProbe(cpus=max(possible_cpus()) + 1, typed=request.param)
    yield loaded
    loaded.close()


def test_work_nested_64_deep_is_counted_and_blamed(probe: SchedProbe, groups: Groups) -> None:
    service, tenant = groups.make("service", latency=True), groups.make("tenant", latency=False)
    deep = groups.make(f"tenant/{DEEP}")
    with loads([Load(service, "bursts", CPU), Load(deep, "hog", CPU)]) as running:
        groups.assert_runs_counted(running, tenant)
        running.work_until("waits", groups.waited(service, least=WAITS))
        reading = probe.poll()
    groups.assert_complete(reading, service)
    assert groups.blame(reading, service, tenant) > 0


def test_work_below_more_levels_than_are_searched_is_unknown_and_not_system(
    probe: SchedProbe, groups: Groups
) -> None:
    deep = groups.make(f"outer/{DEEP}", latency=False)

    def judge(each: Round) -> bool:
        assert groups.sample(each.last, deep).oncpu_ns == 0
        unknown_ns = each.last.unknown_oncpu_ns - each.first.unknown_oncpu_ns
        assert unknown_ns >= each.kernel[deep].oncpu_ns or each.missed
        return not each.missed

    with loads([Load(deep, "hog", CPU)]) as running:
        groups.rounds(running, [deep], judge)


def test_a_move_into_a_cgroup_64_deep_is_one_into_its_workload(
    cgroup_layout: CgroupLayout, cgroup_root: Path
) -> None:
    tenant = cgroup_root / "tenant"
    deep = tenant / DEEP
    deep.mkdir(parents=True)
    cgroup = CgroupId(cgroup_layout.hierarchy, tenant.stat().st_ino)
    path = f"/{tenant.relative_to(cgroup_layout.mount)}"
    with contextlib.closing(MoveProbe(cgroup_layout)) as probe:
        probe.set_workloads([Workload("tenant", cgroup, path, QosClass.BE, "", "")])
        probe.poll()
        with loads([Load(deep, "idle")]):
            moves = probe.poll()
    assert moves.complete
    assert [move.cgroup for move in moves.moves if move.cgroup == cgroup] == [cgroup]


# Moves seen of a task that goes from cgroup to cgroup in a round.
MOVES = 10


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
    start, *others = places
    mover = Load(start, "moves", CPU, tuple(others))
    moves, is_there = 0, True

    def has_moved() -> bool:
        nonlocal moves, is_there
        was_there, is_there = is_there, bool((start / "cgroup.procs").read_text())
        moves += is_there is not was_there
        return moves >= MOVES

    def judge(each: Round) -> bool:
        nonlocal moves
        moves = 0
        saw_all = groups.saw_all(each, start, *tenants)
        ran_ns = groups.gained(each, "oncpu_ns", *tenants)
        assert ran_ns >= each.kernel[start].oncpu_ns or not saw_all
        return saw_all

    with loads([Load(service, "bursts", CPU), mover]) as running:
        groups.rounds(running, [start], judge, also=has_moved)
        enough = groups.waited(service, least=WAITS)

        def is_blamed() -> bool:
            reading = probe.poll()
            return all(groups.blame(reading, service, path) > 0 for path in tenants)

        running.work_until("waits and blame", lambda: enough() and is_blamed())
        reading = probe.poll()
    groups.assert_complete(reading, service)


def test_work_in_a_renamed_cgroup_is_counted(
    probe: SchedProbe, groups: Groups, cgroup_layout: CgroupLayout
) -> None:
    if cgroup_layout.version == "v2":
        pytest.skip("cgroup v2 has no rename")
    tenant = groups.make("tenant", latency=False)
    renamed = tenant.with_name("service")
    with loads([Load(tenant, "hog", CPU)]) as running:
        tenant.rename(renamed)
        groups.assert_runs_counted(running, tenant, renamed)


def test_a_cgroup_named_like_another_pod_belongs_to_the_pod_that_made_it(
    groups: Groups, cgroup_root: Path
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
    with loads([Load(own / f"pod{service}", "hog", CPU)]) as running:
        groups.assert_runs_counted(running, own)


class CrowdedSite(Site):
    """A site whose configuration also names services that are made later."""

    def __init__(self, root: Path, layout: CgroupLayout, home: Path) -> None:
        super().__init__(root, layout, home)
        self.write(
            f'  - {{name: late, cgroup: "{self.path(root)}/late-*", '
            "class: latency-sensitive, profile: nginx}\n"
        )

    def make_crowd(self, number: int) -> list[Path]:
        """Make *number* best-effort cgroups."""
        crowd = [self.root / "batch" / f"c{each:04}" for each in range(number)]
        for path in crowd:
            path.mkdir()
        return crowd


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> CrowdedSite:
    return CrowdedSite(cgroup_root, cgroup_layout, tmp_path)


def metric(agent: AgentRun, name: str, label: str) -> float:
    """Return the value of the metric *name* with *label*, 0 if there is none."""
    page = eventually("metrics", lambda: agent.get("/metrics")) or ""
    (line,) = [x for x in page.splitlines() if x.startswith(f"{name}{{{label}}} ")] or ["- 0"]
    return float(line.rpartition(" ")[2])


UNMEASURED = "sweetpoint_workloads_unmeasured"


@pytest.mark.parametrize("number", [1500, pytest.param(5000, marks=pytest.mark.soak)])
def test_a_crowd_of_cgroups_hides_neither_work_nor_services(number: int, site: CrowdedSite) -> None:
    crowd = site.make_crowd(number)

    def ran(workload: str) -> bool:
        return metric(agent, "sweetpoint_workload_oncpu_seconds_total", workload) > 0.1

    with (
        loads([Load(crowd[-1], "hog"), Load(site.service, "bursts")]) as running,
        AgentRun(site) as agent,
    ):
        agent.ready().enforcing()
        running.start()
        assert metric(agent, UNMEASURED, 'class="best-effort"') >= number - 1021
        late = site.root / "late-1"
        late.mkdir()
        with loads([Load(late, "bursts")]) as others:
            others.start()
            eventually("a late service is measured", lambda: ran('workload="late:late-1"'))
        assert metric(agent, UNMEASURED, 'class="latency-sensitive"') == 0
        found = f'workload="batch:{crowd[-1].name}"'
        eventually("the work in the crowd is found", lambda: ran(found))
        assert site.protected()
        state = agent.status()
        print(f"{number} cgroups: tick median {state['tick']['duration_median_ns'] / 1e6:.1f} ms")
        assert state["tick"]["failed"] == 0
        assert agent.stop() == 0


def test_a_crowd_of_new_cgroups_is_taken_little_by_little_and_counted(site: CrowdedSite) -> None:
    late = site.root / "late-1"

    def taken() -> set[str]:
        return {each["name"] for each in agent.status()["workloads"]}

    def partly_taken() -> bool:
        """Make a crowd and then a service; return whether the service came before the last ones."""
        crowd, seen = site.make_crowd(600), False
        (crowd[-1] / "cgroup.procs").write_text(str(sleeper.pid))
        late.mkdir()
        wanted = {f"batch:{path.name}" for path in crowd} | {"late:late-1"}

        def all_taken() -> bool:
            nonlocal seen
            waiting, now = metric(agent, UNMEASURED, 'class="best-effort"'), taken()
            seen |= "late:late-1" in now and waiting > 0 and not wanted <= now
            # What waits is best-effort work, so its processes do not move sched-idle.
            assert site.protected()
            return wanted <= now

        eventually("all are taken", all_taken)
        (site.bystander / "cgroup.procs").write_text(str(sleeper.pid))
        for path in (*crowd, late):
            path.rmdir()
        eventually("all have gone", lambda: not wanted & taken())
        return seen

    with AgentRun(site) as agent, subprocess.Popen(["sleep", "infinity"]) as sleeper:
        try:
            agent.ready().enforcing()
            # An agent that runs far more often than this process takes all at once for it.
            eventually("a crowd that is taken little by little", partly_taken)
            assert agent.status()["tick"]["failed"] == 0
            assert agent.stop() == 0
        finally:
            sleeper.kill()


@pytest.mark.parametrize("typed", [True, False])
def test_the_search_by_ids_of_kernels_before_6_1_passes_the_verifier(typed: bool) -> None:
    spec = sched_spec(Btf(), cpus=1, max_slots=8, max_latency=1, blame=True)
    old = replace(spec, defines={**spec.defines, "ANCESTOR_IDS": 1}, typed=typed)
    with load(old) as loaded:
        assert loaded.untyped == ("" if typed else "not requested")
