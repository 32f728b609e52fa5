# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent beside a service that waits for a disk, alone and with a job on the same disk."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controller.core.decision import SlowBecause
from controller.demo.programs import free_port
from controller.host.disks import weighted_disks
from controller.host.facts import CgroupLayout, find_controller
from tests.kernel.agent import AgentRun
from tests.kernel.disks import Disk, made_disks, reading
from tests.support.cgroups import remove_cgroup
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

# A request is never that short, so the service always suffers, and only the cause differs.
_PROFILE = """\
name: reader
channels: [io]
sched_idle: false
indicators:
  disk_wait: {sweet_point: 2us, resolution: 1us, filter: 0s, min_samples: 1}
"""


class DiskSite:
    """A service and a job, in cgroups of the cpu and of the io controller, and two disks.

    With *find* the agent has to find the disks itself, and may enable iocost.
    """

    def __init__(
        self,
        root: Path,
        layout: CgroupLayout,
        home: Path,
        disks: list[Disk],
        *,
        find: bool = False,
    ) -> None:
        self.disks, self.port, self.config = disks, free_port(), home / "config.yaml"
        self.find = find
        _, mount = find_controller("blkio", layout.unified)
        assert mount is not None
        self.below = mount / root.name
        for tree in dict.fromkeys((root, self.below)):
            for name in ("", "batch"):
                (tree / name).mkdir(exist_ok=True)
                control = tree / name / "cgroup.subtree_control"
                if control.exists():
                    control.write_text("+cpu +io")
            for name in ("web", "batch/job"):
                (tree / name).mkdir()
        (home / "reader.yaml").write_text(_PROFILE)
        numbers = (f'"{each.number}": {{read: 100MB/s, write: 100MB/s}}' for each in disks)
        known = (
            "io: {iocost: auto}\n"
            if find
            else f"io: {{find: false, disks: {{{', '.join(numbers)}}}}}\n"
        )
        path = "/" + str(root.relative_to(layout.mount))
        self.config.write_text(
            f"mode: enforce\nhttp: 127.0.0.1:{self.port}\n"
            f"state_dir: {home}/state\ndata_dir: {home}/data\nmemory: {{guard: false}}\n"
            f"{known}profiles: [reader.yaml]\nworkloads:\n"
            f"  - {{name: web, cgroup: {path}/web, class: latency-sensitive, profile: reader}}\n"
            f'  - {{name: batch, cgroup: "{path}/batch/*", class: best-effort}}\n'
        )

    def protected(self) -> bool:
        """Not asked for."""
        return True

    @property
    def weighted(self) -> tuple[str, ...]:
        """The disks that follow io.weight."""
        return weighted_disks(self.below.parent)

    @property
    def limit(self) -> str | None:
        """The job's limit for disks; ``None`` on v1, which has no knob for it."""
        file = self.below / "batch/job/io.max"
        return file.read_text() if file.exists() else None


@pytest.fixture
def site(cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path) -> Iterator[DiskSite]:
    with made_disks(2) as disks:
        site = DiskSite(cgroup_root, cgroup_layout, tmp_path, disks)
        yield site
        remove_cgroup(site.below)


def state(agent: AgentRun) -> str | None:
    """Return the state of the io channel."""
    demands = agent.status()["plan"]["demands"]
    return next((str(each["state"]) for each in demands if each["channel"] == "io"), None)


def is_left_alone(site: DiskSite, agent: AgentRun) -> None:
    assert state(agent) != "squeeze"
    assert agent.because("web") != SlowBecause.BEST_EFFORT
    assert not site.limit


def test_only_a_job_that_keeps_the_same_disk_busy_is_limited(site: DiskSite) -> None:
    check(site)


def check(site: DiskSite, *arguments: str) -> None:
    """Run an agent with *arguments*; the job reads another disk than the service, then the same."""
    mine, other = site.disks
    job = site.below / "batch/job"
    with ExitStack() as stack:
        agent = stack.enter_context(AgentRun(site, *arguments)).ready()
        stack.enter_context(reading(mine, site.below / "web", size=4096))
        with reading(other, job):
            eventually("waits of its own", lambda: state(agent) == "not-be")
            eventually("a verdict", lambda: agent.because("web") == SlowBecause.DISK)
            agent.watch(10, lambda: is_left_alone(site, agent))
        stack.enter_context(reading(mine, job))
        eventually("a cause", lambda: state(agent) == "squeeze")
        eventually("its verdict", lambda: agent.because("web") == SlowBecause.BEST_EFFORT)
        if site.limit is not None:
            limit = eventually("a limit", lambda: site.limit)
            assert limit.startswith(f"{mine.number} rbps=")
            assert f"{other.number} " not in limit, "the service does not use it"
        if site.find:
            assert eventually("weights", lambda: site.weighted) == (mine.number,)
        assert agent.stop() == 0
    assert not site.weighted
    assert not site.limit
