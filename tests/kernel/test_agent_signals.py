# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Network traffic and pressure of workloads, from the kernel to the agent's metrics."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.talkers import UDP_HEADERS, Talker
from tests.support.cgroups import remove_cgroup
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]

NETWORK = "sweetpoint_workload_network_bytes_total"


@pytest.fixture
def cgroup2(site: Site, cgroup_layout: CgroupLayout) -> Iterator[Path]:
    """The service's directory in the cgroup2 tree; on v1 a directory with the same path."""
    if cgroup_layout.unified is None:
        pytest.skip("no cgroup2 tree is mounted")
    path = cgroup_layout.unified / site.path(site.service)[1:]
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield path
    finally:
        remove_cgroup(path.parent)


def exchange(cgroup2: Path) -> float:
    """Exchange packets within *cgroup2*; return the bytes sent, which are also those received."""
    with (
        Talker(cgroup2, "echo") as server,
        Talker(cgroup2, "ask", port=int(server.first), size=1000, count=50) as client,
    ):
        client.go()
        client.done()
    return 100.0 * (1000 + UDP_HEADERS)


def test_bytes_of_a_workload_reach_the_metrics(site: Site, cgroup2: Path) -> None:
    with AgentRun(site, "--mode", "observe") as agent:
        agent.ready()
        octets = exchange(cgroup2)
        wanted = {("transmit", "web"): octets, ("receive", "web"): octets}
        if site.layout.version == "v2":  # the best-effort cgroups are cgroup2 directories too
            wanted |= {
                (way, f"batch:{job.name}"): 0.0
                for way in ("transmit", "receive")
                for job in site.batch
            }
        eventually("all bytes", lambda: agent.series(NETWORK) == wanted)
        assert agent.stop() == 0


def total_us(file: Path) -> int:
    """Return the kernel's total of the time in which some task waited."""
    return int(file.read_text().partition("total=")[2].split()[0])


def test_pressure_of_a_service_reaches_the_metrics(site: Site, cgroup2: Path) -> None:
    kernel, host = cgroup2 / "cpu.pressure", Path("/proc/pressure/cpu")
    if not kernel.exists():
        pytest.skip("the kernel has no PSI")

    def exported_us(agent: AgentRun, name: str, *labels: str) -> int:
        return round(agent.series(f"sweetpoint_{name}_seconds_total").get(labels, 0.0) * 1e6)

    with (
        loads([Load(cgroup2, "hog", 0)] * 2) as running,
        AgentRun(site, "--mode", "observe") as agent,
    ):
        agent.ready()
        before_us = total_us(kernel)
        # Two loads on one CPU: one of them always waits.
        running.work_until("a wait", lambda: total_us(kernel) > before_us + 100_000)
        eventually(
            "the kernel's figure",
            lambda: exported_us(agent, "workload_pressure", "cpu", "web") == total_us(kernel),
        )
        before_us = total_us(host)
        eventually(
            "a new figure of the host",
            lambda: exported_us(agent, "host_pressure", "cpu") >= before_us,
        )
        assert exported_us(agent, "host_pressure", "cpu") <= total_us(host)
        assert {labels[0] for labels in agent.series("sweetpoint_host_pressure_seconds_total")} == {
            "cpu",
            "memory",
            "io",
        }
        assert agent.stop() == 0


def test_without_btf_the_network_is_still_measured(site: Site, cgroup2: Path) -> None:
    before = site.knobs()
    with AgentRun(site, without="mount --bind /dev/null /sys/kernel/btf/vmlinux") as agent:
        eventually("a tick", lambda: agent.get("/healthz"))
        assert agent.get("/readyz") is None
        octets = exchange(cgroup2)
        eventually("all bytes", lambda: agent.series(NETWORK).get(("transmit", "web")) == octets)
        status = agent.status()
        assert "BTF" in status["probes"]["sched"]
        assert {loop["status"] for loop in status["plan"]["loops"]} == {"stale"}
        assert status["tick"]["failed"] == 0
        assert agent.stop() == 0
    assert site.knobs() == before


def test_without_a_cgroup2_tree_only_the_network_is_not_measured(
    site: Site, cgroup_layout: CgroupLayout
) -> None:
    if cgroup_layout.version == "v2":
        pytest.skip("on v2 there are no workloads without that tree")
    with AgentRun(site, without=f"umount {cgroup_layout.unified}") as agent:
        agent.ready().enforcing()
        reasons = agent.series("sweetpoint_probe_up")
        reason = next(words[1] for words, up in reasons.items() if words[0] == "net" and not up)
        assert reason.startswith("no cgroup2 tree is mounted")
        assert agent.series(NETWORK) == {}
        assert agent.series("sweetpoint_workload_pressure_seconds_total") == {}
        assert agent.stop() == 0
