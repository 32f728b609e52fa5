# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Network traffic and pressure of workloads, from the kernel to the agent's metrics."""

from collections.abc import Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
import pytest

from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.talkers import UDP_HEADERS, Talker
from tests.support.cgroups import remove_cgroup
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

Series = dict[tuple[str, ...], float]


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Site:
    return Site(cgroup_root, cgroup_layout, tmp_path)


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


def series(agent: AgentRun, name: str) -> Series:
    """Return the samples of the metric *name* by the values of their labels."""
    page = agent.get("/metrics") or ""
    families = {f.name: f for f in text_string_to_metric_families(page)}
    return {tuple(s.labels.values()): s.value for s in families[name].samples}


def exchange(cgroup2: Path) -> float:
    """Exchange packets within *cgroup2*; return the bytes sent, which are also those received."""
    server = Talker(cgroup2, "echo")
    client = Talker(cgroup2, "ask", port=int(server.first), size=1000, count=50)
    try:
        client.go()
        client.done()
    finally:
        client.end()
        server.end()
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
        eventually(
            "all bytes", lambda: series(agent, "sweetpoint_workload_network_bytes") == wanted
        )
        assert agent.stop() == 0


def test_pressure_of_a_service_reaches_the_metrics(site: Site, cgroup2: Path) -> None:
    if not (cgroup2 / "cpu.pressure").exists():
        pytest.skip("the kernel has no PSI")
    with (
        loads([Load(cgroup2, "hog", 0)] * 2, seconds=3) as running,
        AgentRun(site, "--mode", "observe") as agent,
    ):
        agent.ready()
        before = series(agent, "sweetpoint_workload_pressure_seconds")
        running.work()  # two loads on one CPU: one of them always waits
        kernel = (cgroup2 / "cpu.pressure").read_text().partition("total=")[2].split()[0]
        key = ("cpu", "web")
        eventually(
            "the kernel's figure",
            lambda: (
                series(agent, "sweetpoint_workload_pressure_seconds")[key]
                == pytest.approx(int(kernel) / 1e6, rel=0.01)
            ),
        )
        grown = series(agent, "sweetpoint_workload_pressure_seconds")[key] - before.get(key, 0.0)
        assert grown > 2.5
        host = series(agent, "sweetpoint_host_pressure_seconds")
        assert set(host) == {("cpu",), ("memory",), ("io",)}
        assert host[("cpu",)] >= grown
        assert agent.stop() == 0


def test_without_btf_the_network_is_still_measured(site: Site, cgroup2: Path) -> None:
    before = site.knobs()
    with AgentRun(site, without="mount --bind /dev/null /sys/kernel/btf/vmlinux") as agent:
        eventually("a tick", lambda: agent.get("/healthz"))
        assert agent.get("/readyz") is None
        octets = exchange(cgroup2)
        eventually(
            "all bytes",
            lambda: (
                series(agent, "sweetpoint_workload_network_bytes")[("transmit", "web")] == octets
            ),
        )
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
        reasons = series(agent, "sweetpoint_probe_up")
        reason = next(words[1] for words, up in reasons.items() if words[0] == "net" and not up)
        assert reason.startswith("no cgroup2 tree is mounted")
        assert series(agent, "sweetpoint_workload_network_bytes") == {}
        assert series(agent, "sweetpoint_workload_pressure_seconds") == {}
        assert agent.stop() == 0
