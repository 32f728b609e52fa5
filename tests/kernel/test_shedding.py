# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The sched probe with details shed: the remaining figures are correct."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.counters import choose_sources
from controller.probes.sched import DETAILS, SchedProbe
from tests.kernel.agent import AgentRun, Site
from tests.kernel.groups import Groups
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel
thorough, timed = pytest.mark.thorough, pytest.mark.timed

# Switches of a job while nothing counts them.
MEANTIME = 1000


@pytest.fixture
def probe() -> Iterator[SchedProbe]:
    # Context switches stand for cycles: the kernel counts those events for each task as well.
    sources, reasons = choose_sources({"cycles": "context-switches", "instructions": "cpu-clock"})
    assert reasons == {}
    loaded = SchedProbe(cpus=max(possible_cpus()) + 1, counters=sources)
    yield loaded
    loaded.close()


@thorough
def test_counters_are_shed_and_start_again_at_zero(probe: SchedProbe, groups: Groups) -> None:
    job = groups.make("job", latency=False)
    with loads([Load(job, "bursts", CPU)]) as running:

        def switches() -> int:
            return running.schedstat(job).runs

        running.start()
        eventually("counts", lambda: (groups.counted(job).cycles or 0) > 50)
        probe.shed(1)
        without, start = groups.counted(job), switches()
        assert without.cycles is without.instructions is None
        assert without.oncpu_ns is not None
        eventually("work in the meantime", lambda: switches() > start + MEANTIME)
        before = switches()
        probe.shed(0)
        eventually("counts", lambda: (groups.counted(job).cycles or 0) > 50)
        running.stop()
        again, ran = groups.counted(job).cycles, switches() - before
    # Work in the meantime is counted for no workload. A few switches more are: that of the run at
    # the begin, and those that the kernel showed to no program.
    assert again is not None and 50 < again < ran + MEANTIME / 2


@thorough
def test_waits_without_blame_are_those_of_the_kernel(probe: SchedProbe, groups: Groups) -> None:
    service, hog = groups.make("service", latency=True), groups.make("hog", latency=False)
    probe.shed(2)
    with loads([Load(service, "bursts", CPU), Load(hog, "hog", CPU)]) as running:
        groups.assert_agree(running, [service, hog])
        reading = probe.poll()
    groups.assert_complete(reading, service)
    assert_blames_nobody(groups, probe, service)


@thorough
def test_sampled_waits_count_for_four(probe: SchedProbe, groups: Groups) -> None:
    service, hog = groups.make("service", latency=True), groups.make("hog", latency=False)
    probe.shed(3)
    with loads([*[Load(service, "bursts", CPU)] * 3, Load(hog, "hog", CPU)]) as running:
        before = running.schedstat(service).runs
        running.work_until("runs", lambda: running.schedstat(service).runs - before > 1000)
        runs, reading = running.schedstat(service).runs, probe.poll()
    groups.assert_complete(reading, service)
    sample = groups.sample(reading, service)
    assert sample.waits is not None and sample.runq_histogram is not None
    assert not sample.waits % 4 and not any(each % 4 for each in sample.runq_histogram)
    # How many were sampled is chance and depends on the machine; a test with the marker
    # `timed` judges that. That each counts for four does not.
    assert 0 < sample.waits <= 4 * runs
    assert_blames_nobody(groups, probe, service)


def assert_blames_nobody(groups: Groups, probe: SchedProbe, service: Path) -> None:
    """Assert that all that is inflicted on *service* is of unknown culprits."""
    reading = probe.poll()
    inflicted_ns = groups.sample(reading, service).wait_inflicted_ns
    unknown_ns = sum(each.wait_ns for each in reading.blame if not each.known)
    assert unknown_ns == inflicted_ns
    assert unknown_ns > 0


@timed
@pytest.mark.parametrize("shed", [2, 3], ids=DETAILS[1:])
def test_waits_are_about_those_of_the_kernel(shed: int, probe: SchedProbe, groups: Groups) -> None:
    service, hog = groups.make("service", latency=True), groups.make("hog", latency=False)
    probe.shed(shed)
    with loads([Load(service, "bursts", CPU), Load(hog, "hog", CPU)], seconds=4) as running:
        before, first = running.schedstat(service), groups.counted(service)
        running.work()
        waited_ns = running.schedstat(service).since(before).wait_ns
        last = groups.counted(service)
    assert first.wait_total_ns is not None and last.wait_total_ns is not None
    # With sampling three of four waits are estimated. With some hundred waits the error is 10 %,
    # rarely 20 %.
    near = 0.02 if shed == 2 else 0.35
    assert last.wait_total_ns - first.wait_total_ns == pytest.approx(waited_ns, rel=near)
    inflicted_ns = (last.wait_inflicted_ns or 0) - (first.wait_inflicted_ns or 0)
    assert inflicted_ns == pytest.approx(waited_ns, rel=0.35)


@thorough
def test_an_agent_over_its_budget_sheds_details(
    cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path
) -> None:
    site = Site(cgroup_root, cgroup_layout, tmp_path)
    site.write(extra="budget: {cpu: 1mcpu, memory: 1MiB}\n")
    with AgentRun(site) as agent:
        agent.ready()
        shed = 'sweetpoint_detail_shed{detail="counters"} 1.0'
        eventually("counters are shed", lambda: shed in (agent.get("/metrics") or ""))
        agent.stop()
    first, *_ = (line for line in agent.output.splitlines() if "is shed from now on" in line)
    assert "mcpu, budget 1mcpu: detail counters is shed" in first
    assert "own memory" in agent.output
