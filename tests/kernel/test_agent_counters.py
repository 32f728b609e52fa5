# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent with hardware counters: from configuration to metrics, and reasons if one is off."""

from collections.abc import Callable

import pytest

from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.test_counters import tsc_ghz
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

SECTION = "counters: {cycles: msr/tsc/, instructions: cpu-clock, llc_misses: msr/nosuch/}\n"


def of(run: AgentRun, counter: str) -> dict[str, float]:
    """Return the counts by workload."""
    found = run.series(f"sweetpoint_workload_{counter}_total")
    return {labels[0]: value for labels, value in found.items()}


@pytest.mark.thorough
def test_counters_are_exported_until_their_workload_is_removed(site: Site) -> None:
    site.write(SECTION, mode="observe")

    def counted(counter: str) -> Callable[[], bool]:
        return lambda: of(run, counter).get("web", 0) > 0

    with loads([Load(site.service, "hog")]) as running, AgentRun(site) as run:
        run.ready()
        assert of(run, "llc_misses") == {}
        assert "has no event 'nosuch'" in run.status()["probes"]["counter llc_misses"]
        running.start()
        eventually("instructions", counted("instructions"))
        eventually("cycles", counted("cycles"))
        running.stop()
        assert {name for name, count in of(run, "cycles").items() if count} == {"web"}
        assert len(of(run, "cycles")) == 3
        site.batch[0].rmdir()
        eventually("two workloads", lambda: len(of(run, "cycles")) == 2)
        assert run.stop() == 0
    assert "counter llc_misses is off: msr/nosuch/" in run.output


@pytest.mark.timed
def test_counters_agree_with_the_kernel_s_clocks(site: Site) -> None:
    site.write(SECTION, mode="observe")
    with loads([Load(site.service, "hog")], seconds=2) as running, AgentRun(site) as run:
        run.ready()
        running.work()
        wanted = running.schedstat(site.service).oncpu_ns
        eventually("all instructions", lambda: of(run, "instructions")["web"] > 0.98 * wanted)
        run.watch(1)
        frequency = of(run, "cycles")["web"] / of(run, "instructions")["web"]
        assert frequency == pytest.approx(tsc_ghz(), rel=0.01)
        assert run.stop() == 0
