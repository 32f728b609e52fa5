# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent with hardware counters: from configuration to metrics, and reasons if one is off."""

from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.test_agent_sources import series
from tests.kernel.test_counters import tsc_ghz
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

SECTION = "counters: {cycles: msr/tsc/, instructions: cpu-clock, llc_misses: msr/nosuch/}\n"


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Site:
    return Site(cgroup_root, cgroup_layout, tmp_path)


def of(run: AgentRun, counter: str) -> dict[str, float]:
    found = series(run, f"sweetpoint_workload_{counter}_total")
    return {labels.split('"')[1]: value for labels, value in found.items()}


def test_counters_are_exported_until_their_workload_is_removed(site: Site) -> None:
    site.write(SECTION, mode="observe")
    with loads([Load(site.service, "hog")], seconds=2) as running, AgentRun(site) as run:
        run.ready()
        assert of(run, "llc_misses") == {}
        assert "has no event 'nosuch'" in run.status()["probes"]["counter llc_misses"]
        running.work()
        wanted = running.schedstat(site.service).oncpu_ns
        eventually("all instructions", lambda: of(run, "instructions")["web"] > 0.98 * wanted)
        eventually(
            "the frequency",
            lambda: (
                of(run, "cycles")["web"] / of(run, "instructions")["web"]
                == pytest.approx(tsc_ghz(), rel=0.01)
            ),
        )
        assert len(of(run, "cycles")) == 3
        site.batch[0].rmdir()
        eventually("two workloads", lambda: len(of(run, "cycles")) == 2)
        assert run.stop() == 0
    assert "counter llc_misses is off: msr/nosuch/" in run.output
