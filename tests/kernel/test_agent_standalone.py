# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Evictions by the agent on a host without Kubernetes: freeze, thaw and kill."""

from collections.abc import Iterator
import contextlib
from pathlib import Path
import subprocess
import sys

import pytest

from actuators.freezer import freezers
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, PROFILE, outweigh
from tests.support.cgroups import remove_cgroup
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.soak]


class Host(Site):
    """A service and a hog on its CPU that may be frozen or killed."""

    action = "freeze"

    def write(self, extra: str = "", mode: str = "enforce") -> None:
        (self.home / "tight.yaml").write_text(PROFILE)
        self.config.write_text(
            f"mode: {mode}\n"
            f"http: 127.0.0.1:{self.port}\n"
            f"state_dir: {self.home}/state\ndata_dir: {self.home}/data\n"
            "profiles: [tight.yaml]\n"
            f"eviction: {{standalone: {self.action}}}\n"
            "workloads:\n"
            f"  - {{name: web, cgroup: {self.path(self.service)}, "
            "class: latency-sensitive, profile: tight}\n"
            f'  - {{name: batch, cgroup: "{self.path(self.root)}/batch/*", class: best-effort}}\n'
            f"{extra}"
        )

    @property
    def hog(self) -> Path:
        return self.batch[0]

    @property
    def freezer(self) -> Path:
        """The cgroup in which the hog is frozen."""
        if self.layout.version == "v2":
            return self.hog
        return freezers(self.layout)[0].mount / self.hog.relative_to(self.layout.mount)

    def frozen(self) -> bool:
        """Whether all processes of the hog are frozen."""
        if self.layout.version == "v2":
            return "frozen 1" in (self.freezer / "cgroup.events").read_text()
        return (self.freezer / "freezer.state").read_text().strip() == "FROZEN"

    @contextlib.contextmanager
    def overload(self) -> Iterator[None]:
        """Run the service, the hog, and a light best-effort load that is not to be evicted."""
        wanted = (
            Load(self.service, "bursts", CPU),
            Load(self.hog, "hog", CPU),
            Load(self.batch[1], "bursts", CPU),
        )
        with loads(wanted) as running:
            if self.layout.version == "v1":
                self.freezer.mkdir(parents=True)
                for pid in (self.hog / "cgroup.procs").read_text().split():
                    (self.freezer / "cgroup.procs").write_text(pid)
            running.start()
            yield


@pytest.fixture
def host(cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path) -> Iterator[Host]:
    host = Host(cgroup_root, cgroup_layout, tmp_path)
    outweigh(host.root)
    outweigh(host.root / "batch")
    try:
        yield host
    finally:
        if cgroup_layout.version == "v1":
            top = host.freezer.parents[1]
            with contextlib.suppress(FileNotFoundError):
                (host.freezer / "freezer.state").write_text("THAWED")
            remove_cgroup(top)


def test_a_frozen_workload_runs_again_when_the_agent_ends(host: Host) -> None:
    before = host.knobs()
    with host.overload(), AgentRun(host) as agent:
        agent.ready()
        eventually("a frozen hog", host.frozen)
        frozen = 'sweetpoint_evictions_total{reason="cpu",result="frozen"} 1.0'
        eventually("the count of it", lambda: frozen in (agent.get("/metrics") or ""))
        # The knobs of what is held are listed every five seconds, and read in as many.
        agent.watch(50)
        assert host.frozen()
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop() == 0
        assert not host.frozen()
    assert host.knobs() == before
    assert "batch/two: to be evicted" not in agent.output


def test_the_guardian_thaws_what_a_killed_agent_froze(host: Host) -> None:
    def still_runs() -> None:
        assert not host.frozen()

    with host.overload(), AgentRun(host) as agent:
        agent.ready()
        eventually("a frozen hog", host.frozen)
        agent.kill_agent()
        eventually("a hog that runs", lambda: not host.frozen())
        agent.ready()
        # The overload continues, but the new agent knows that the hog has just been evicted.
        agent.watch(75, still_runs)
        assert agent.stop() == 0
    assert not list((host.home / "state" / "journal").iterdir())


@pytest.mark.parametrize("then", ["started", "released"])
def test_after_sigkill_of_both_nothing_stays_frozen(host: Host, then: str) -> None:
    with host.overload(), AgentRun(host) as agent:
        agent.ready()
        eventually("a frozen hog", host.frozen)
        agent.kill_both()
        assert host.frozen()
        if then == "started":
            with AgentRun(host) as again:
                again.ready()
                assert not host.frozen()
                assert again.stop() == 0
        else:
            state = str(host.home / "state")
            command = [sys.executable, "-m", "controller.cli.main", "release", "--state-dir", state]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            assert "cgroup.freeze: '1' back to '0'" in done.stdout
        assert not host.frozen()
    assert not list((host.home / "state" / "journal").iterdir())


def test_with_the_action_kill_the_hog_is_killed(host: Host) -> None:
    host.action = "kill"
    host.write()
    with host.overload(), AgentRun(host) as agent:
        agent.ready()
        killed = 'sweetpoint_evictions_total{reason="cpu",result="killed"} 1.0'
        eventually("the count of it", lambda: killed in (agent.get("/metrics") or ""))
        assert not (host.hog / "cgroup.procs").read_text().split()
        for cgroup in (host.service, host.batch[1]):
            assert (cgroup / "cgroup.procs").read_text().split()
        assert agent.stop() == 0
