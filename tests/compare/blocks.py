# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks of the comparison: one service under one load beside one job under one policy."""

from collections.abc import Iterator
import contextlib
from dataclasses import asdict, dataclass
import json
import os
from pathlib import Path
import time

import numpy as np

from controller.core.units import NS_PER_MS, NS_PER_SEC
from controller.demo.programs import BestEffort, start
from controller.demo.session import Session
from tests.compare.client import intended_ns
from tests.compare.jobs import JOBS
from tests.compare.policies import POLICIES, CpuKnobs, Node, Policy
from tests.compare.services import SERVICES, Service, Traffic

__all__ = ("ALONE", "LS", "WINDOW_S", "Block", "Mix", "Runner", "load_blocks")

LS = "ls"
# The service beside idle-class work, which keeps the CPUs awake, instead of a job.
ALONE = "alone"
WINDOW_S = 0.5
# The client imports, connects and gets a first answer on each connection.
_LEAD_S = 3.0
_FILLER = ("stress-ng", "--cpu", str(os.cpu_count() or 1))
_OUTPUT_WITHIN_S = 15.0


@dataclass(frozen=True, slots=True)
class Mix:
    """A service, the shape of its load, and a job, by name."""

    service: str
    shape: str
    job: str

    def __str__(self) -> str:
        return f"{self.service} {self.shape} + {self.job}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The result of a block.

    ``p99_ms`` has a value for each window of ``WINDOW_S``, by the intended time; requests without
    an answer count as endless. ``work`` is the job's own count per second. ``ls_cpus`` and
    ``be_cpus`` are CPU use. ``unaccounted_ratio`` is the share of the machine's time that is
    neither in the accounts of cgroups nor idle nor stolen; ``steal_ratio`` is the stolen share.
    """

    mix: str
    policy: str
    round: int
    p50_ms: float
    p99_ms: tuple[float, ...]
    failed: int
    requests: int
    work: float
    unit: str
    ls_cpus: float
    be_cpus: float
    writes: int
    unaccounted_ratio: float
    steal_ratio: float


def load_blocks(path: Path) -> list[Block]:
    """Return the blocks in the file of JSON lines *path*."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [Block(**row | {"p99_ms": tuple(row["p99_ms"])}) for row in rows]


class Runner:
    """Runs blocks of *seconds* in *session* and appends them to the file *output*."""

    def __init__(
        self, session: Session, cpu_mount: Path, version: str, seconds: float, output: Path
    ) -> None:
        self._session, self._seconds, self._output = session, seconds, output
        self._root = cpu_mount / session.cgroups.path[1:]
        self._version = version
        for job in self._root.glob("be-*"):
            weight, value = ("cpu.weight", "1") if version == "v2" else ("cpu.shares", "2")
            (job / weight).write_text(value)

    @contextlib.contextmanager
    def serving(self, service: Service) -> Iterator[int]:
        """Run *service* in its cgroup and yield its port."""
        home = self._session.home / service.name
        home.mkdir(exist_ok=True)
        home.chmod(0o755)
        with service.running(home, lambda: self._session.cgroups.join(LS)) as port:
            yield port

    def run(self, mix: Mix, policy: str, round_number: int, port: int) -> Block:
        """Run a block beside the service on *port*.

        :raises DemoError: a program failed.
        """
        service = SERVICES[mix.service]
        job = None if policy == ALONE else JOBS[mix.job]
        chosen = Policy(name=ALONE, idle=True) if job is None else POLICIES[policy]
        cgroup = f"be-{mix.job if job else 'filler'}"
        knobs = CpuKnobs(self._root / cgroup, self._version)
        oncpu_ns = self._session.cgroups.oncpu_ns
        node = Node(
            knobs=knobs,
            service_oncpu_ns=lambda: oncpu_ns(LS),
            service_wait_ns=lambda: _waited_ns(self._root / LS),
        )
        if chosen.mode:
            self._session.start_agent(chosen.mode, profile=service.profile)
        try:
            with chosen.applied(node):
                block = self._measure(mix, policy, round_number, job, service, port, cgroup, knobs)
        finally:
            self._session.stop_agent()
        with self._output.open("a") as file:
            file.write(json.dumps(asdict(block)) + "\n")
        return block

    def _measure(
        self,
        mix: Mix,
        policy: str,
        round_number: int,
        job: BestEffort | None,
        service: Service,
        port: int,
        cgroup: str,
        knobs: CpuKnobs,
    ) -> Block:
        home, cgroups = self._session.home, self._session.cgroups
        segments = service.segments(mix.shape, self._seconds)
        start_ns = time.monotonic_ns() + round(_LEAD_S * NS_PER_SEC)
        traffic = Traffic(service, port, segments, start_ns, home)
        output = home / f"{cgroup}.account"
        output.unlink(missing_ok=True)
        command = list(_FILLER) if job is None else job.command(output)
        time.sleep(max(0.0, (start_ns - time.monotonic_ns()) / NS_PER_SEC))
        before = self._accounts(cgroup)
        process = start(cgroup, command, home, join=lambda: cgroups.join(cgroup))
        intended, latency_ns = traffic.run()
        after = self._accounts(cgroup)
        used = {key: after[key] - before[key] for key in before}
        if job is None:
            process.stop()
            amount = None
        else:
            process.stop(job.stop_by, _OUTPUT_WITHIN_S)
            amount = job.work(output.read_text()) if output.exists() else None
        ran_s = time.monotonic() - before["wall"]
        cgroups.kill(cgroup)
        wall = used["wall"] * (os.cpu_count() or 1)
        expected = len(intended_ns(start_ns, segments))
        return Block(
            mix=str(mix),
            policy=policy,
            round=round_number,
            p50_ms=float(np.median(latency_ns[latency_ns >= 0])) / NS_PER_MS,
            p99_ms=tuple(_windows(intended, latency_ns, start_ns, self._seconds)),
            failed=int((latency_ns < 0).sum()),
            requests=expected,
            work=0.0 if amount is None else amount / ran_s,
            unit="" if job is None else job.unit,
            ls_cpus=used["ls"] / used["wall"],
            be_cpus=used["be"] / used["wall"],
            writes=knobs.writes,
            unaccounted_ratio=1 - (used["tasks"] + used["other"] + used["stolen"]) / wall,
            steal_ratio=used["stolen"] / wall,
        )

    def _accounts(self, cgroup: str) -> dict[str, float]:
        """Return seconds so far: wall clock, CPU time of all cgroups and of two, idle, stolen."""
        oncpu_ns = self._session.cgroups.oncpu_ns
        fields = [
            int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        ]
        per_s = os.sysconf("SC_CLK_TCK")
        return {
            "wall": time.monotonic(),
            "tasks": self._all_tasks_s(),
            "ls": oncpu_ns(LS) / NS_PER_SEC,
            "be": oncpu_ns(cgroup) / NS_PER_SEC,
            # idle, iowait, irq, softirq
            "other": sum(fields[3:7]) / per_s,
            "stolen": fields[7] / per_s,
        }

    def _all_tasks_s(self) -> float:
        mount = self._root.parent
        if self._version == "v2":
            text = (mount / "cpu.stat").read_text()
            return int(text.split("usage_usec ", 1)[1].split("\n", 1)[0]) / 1e6
        return int((self._cpuacct() / "cpuacct.usage").read_text()) / NS_PER_SEC

    def _cpuacct(self) -> Path:
        mount = self._root.parent
        return mount if (mount / "cpuacct.usage").exists() else mount.with_name("cpuacct")


def _windows(
    intended: np.ndarray, latency_ns: np.ndarray, start_ns: int, seconds: float
) -> Iterator[float]:
    """Yield p99 in ms of each whole window of requests by intended time."""
    endless = np.where(latency_ns < 0, np.inf, latency_ns / NS_PER_MS)
    window = ((intended - start_ns) / (WINDOW_S * NS_PER_SEC)).astype(int)
    for number in range(int(seconds / WINDOW_S)):
        inside = endless[window == number]
        if len(inside) >= 20:
            yield float(np.quantile(inside, 0.99, method="higher"))


def _waited_ns(directory: Path) -> int:
    """Return how long the threads in the cgroup *directory* have waited for a CPU."""
    waited = 0
    for tid in (directory / "tasks").read_text().split():
        with contextlib.suppress(OSError):
            waited += int(Path(f"/proc/{tid}/schedstat").read_text().split()[1])
    return waited
