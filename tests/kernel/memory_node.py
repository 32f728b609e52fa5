# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A cgroup with a limit of memory as a node: a service that grows, and jobs that never stop to.

The service uses more than it requested, so its oom_score_adj is below that of the jobs, and yet the
kernel kills it first: it is the largest process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
import random
import time

from controller.demo.grower import Grower
from controller.demo.programs import free_port
from controller.host.facts import CgroupLayout
from controller.host.memory import find_memory
from tests.support.cgroups import remove_cgroup
from tests.support.waiting import eventually

__all__ = ("MIB", "MemoryNode", "memory_node")

MIB = 1 << 20
_JOBS = ("one", "two", "three")


class MemoryNode:
    """The cgroups of both hierarchies and a configuration; ``jobs_ended`` counts dead ``jobs``.

    ``capacity_mib`` is the memory of the node, of which the service holds ``first_mib``, then at
    most ``most_mib``.
    """

    def __init__(self, layout: CgroupLayout, root: Path, home: Path, scale: int) -> None:
        self.capacity_mib, self.margin_mib = 300 * scale, 24 * scale
        self.first_mib, self.most_mib = 150 * scale, 200 * scale
        self._layout, self.root = layout, root
        memory = find_memory(layout.unified)
        assert memory.mount is not None
        self.version: str = memory.version
        self.mount: Path = memory.mount
        self.hierarchy = memory.hierarchy
        # A limit of v2 stays so far above the use.
        self._slack_mib = 64 if memory.version == "v2" else 0
        self.memory = memory.mount / root.relative_to(layout.mount)
        self.config, self.port = home / "config.yaml", free_port()
        self._home = home
        self.jobs_ended = 0
        self._service: Grower | None = None
        self.jobs: dict[str, Grower] = {}
        self._make()

    def _make(self) -> None:
        trees = {self.root, self.memory}
        for tree in trees:
            tree.mkdir(exist_ok=True)
            for name in ("", "batch"):
                (tree / name).mkdir(exist_ok=True)
                control = tree / name / "cgroup.subtree_control"
                if control.exists():
                    control.write_text("+cpu +memory")
            for name in ("web", *(f"batch/{job}" for job in _JOBS)):
                (tree / name).mkdir()
        name = "memory.max" if self.version == "v2" else "memory.limit_in_bytes"
        (self.memory / name).write_text(str(self.capacity_mib * MIB))

    @property
    def limit_file(self) -> Path:
        """The limit of all jobs together."""
        name = "memory.max" if self.version == "v2" else "memory.limit_in_bytes"
        return self.memory / "batch" / name

    def write(self, memory: str = "", extra: str = "") -> None:
        """Write the configuration; *memory* is more for its section."""
        path = "/" + str(self.root.relative_to(self._layout.mount))
        self.config.write_text(
            f"mode: enforce\nhttp: 127.0.0.1:{self.port}\n"
            f"state_dir: {self._home}/state\ndata_dir: {self._home}/data\n"
            f"memory: {{capacity: {self.capacity_mib}MiB, margin: {self.margin_mib}MiB{memory}}}\n"
            "eviction: {standalone: kill, per_hour: 60, cool_down: 10s}\n"
            "workloads:\n"
            f"  - {{name: web, cgroup: {path}/web, class: latency-sensitive, profile: nginx}}\n"
            f'  - {{name: batch, cgroup: "{path}/batch/*", class: best-effort}}\n{extra}'
        )

    def limit_mib(self) -> int:
        """Return the limit of all jobs together; a very large number for none."""
        text = self.limit_file.read_text().strip()
        return (2**63 if text == "max" else int(text)) // MIB

    def is_limited(self) -> bool:
        """Whether the jobs have a limit."""
        return self.limit_mib() < self.capacity_mib

    def protected(self) -> bool:
        """Whether the jobs have a limit."""
        return self.is_limited()

    def start_service(self) -> None:
        """Start the service, and wait until it holds half of the node."""
        self._service = Grower(980, (self.root / "web", self.memory / "web"))
        self._service.grow(self.first_mib, 0)
        eventually("the service", lambda: self.service.held_mib == self.first_mib)

    @property
    def service(self) -> Grower:
        """The service."""
        assert self._service is not None
        return self._service

    def grow(self, seconds: float, chance: random.Random) -> None:
        """Let the service grow in 2.5 s, beside jobs, for *seconds* or until it ends."""
        self.service.grow(self.most_mib, 0.05)
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.service.code is None:
            self.keep_jobs(chance)
            time.sleep(chance.uniform(0.2, 0.8))

    def grow_with_limit(self, chance: random.Random) -> None:
        """Let the service grow to the most as fast as the limit of the jobs follows."""
        for to_mib in range(
            self.first_mib, self.most_mib + 1, (self.most_mib - self.first_mib) // 10
        ):
            self.service.grow(to_mib, 0)

            def has_followed(to_mib: int = to_mib) -> bool:
                self.keep_jobs(chance)
                left = self.capacity_mib - self.margin_mib - to_mib + self._slack_mib
                return self.service.code is not None or (
                    self.service.held_mib == to_mib and self.limit_mib() <= left
                )

            eventually(f"a limit beside {to_mib} MiB", has_followed)

    def start_job(self, job: str, mib: int) -> None:
        """Start a job that holds so much, and wait until it does."""
        grower = self.jobs[job] = self._start_job(job)
        grower.grow(mib, 0)
        eventually(f"job {job}", lambda: grower.held_mib == mib)

    def _start_job(self, job: str) -> Grower:
        name = f"batch/{job}"
        return Grower(1000, (self.root / name, self.memory / name))

    def keep_jobs(self, chance: random.Random) -> None:
        """Start the jobs that are not there, which grow by 50 to 200 MiB per second."""
        for job in _JOBS:
            grower = self.jobs.get(job)
            if grower is not None and grower.code is None:
                continue
            if grower is not None:
                self.jobs_ended += 1
                grower.end()
            grower = self.jobs[job] = self._start_job(job)
            grower.grow(10**6, chance.uniform(0.005, 0.02))

    def close(self) -> None:
        """End all processes and remove the cgroups."""
        for grower in (self._service, *self.jobs.values()):
            if grower is not None:
                grower.end()
        remove_cgroup(self.memory)


@contextmanager
def memory_node(
    layout: CgroupLayout, root: Path, home: Path, scale: int = 1
) -> Iterator[MemoryNode]:
    """Make a node of 300 MiB times *scale* below *root*; nothing is left of it afterwards."""
    node = MemoryNode(layout, root, home, scale)
    try:
        node.write()
        yield node
    finally:
        node.close()
