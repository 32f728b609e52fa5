# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks of the comparison: one service under one load beside one job under one policy."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
from functools import partial
import math
import os
from pathlib import Path
import shutil
import time

import numpy as np

from controller.core.units import NS_PER_MS, NS_PER_SEC
from controller.demo.cgroups import DemoError
from controller.demo.programs import BestEffort, start
from controller.demo.session import Session
from tests.compare.client import Segment, intended_ns
from tests.compare.jobs import JOBS
from tests.compare.link import NETWORK, Link
from tests.compare.plan import LEARN_S, Mix, Task
from tests.compare.policies import POLICIES, CpuKnobs, Node, Policy
from tests.compare.record import ALONE, WINDOW_S, Block
from tests.compare.services import SERVICES, Service, Traffic
from tests.compare.watch import agent_ticks, agent_writes, watched

__all__ = ("LS", "Runner", "unaccounted_s", "window_p99_ms")

LS = "ls"
# The client imports, connects and gets a first answer on each connection.
_LEAD_S = 2.0
_FILLER = ("stress-ng", "--cpu", str(os.cpu_count() or 1))
_OUTPUT_WITHIN_S = 15.0
# A job that got less of a CPU may have done nothing that it counts.
_NOTHING_CPUS = 0.1


class Runner:
    """Runs blocks of *seconds* in *session*, whose cgroups exist, and over *link*."""

    def __init__(
        self, session: Session, cpu_mount: Path, version: str, seconds: float, link: Link
    ) -> None:
        self._session, self._seconds, self._link = session, seconds, link
        self._root = cpu_mount / session.cgroups.path[1:]
        self._version = version
        self._memories: dict[tuple[str, str], dict[str, float]] = {}

    @contextlib.contextmanager
    def serving(self, service: Service) -> Iterator[int]:
        """Run *service* in its cgroup and yield its port."""
        home = self._session.home / service.name
        home.mkdir(exist_ok=True)
        home.chmod(0o755)
        join = partial(self._session.cgroups.join, LS, with_sockets=service.remote)
        with service.running(home, join) as port:
            yield port

    def run(self, task: Task, port: int) -> Block:
        """Run a block beside the service on *port*.

        :raises Exception: a program or a rule failed; all but the service has ended.
        """
        service = SERVICES[task.mix.service]
        job = None if task.policy == ALONE else JOBS[task.mix.job]
        chosen = Policy(name=ALONE, idle=True) if job is None else POLICIES[task.policy]
        cgroup = f"be-{task.mix.job if job else 'filler'}"
        knobs = CpuKnobs(self._root / cgroup, self._version)
        oncpu_ns = self._session.cgroups.oncpu_ns
        node = Node(
            knobs=knobs,
            service_oncpu_ns=lambda: oncpu_ns(LS),
            service_wait_ns=lambda: _waited_ns(self._root / LS, self._version),
            memory=self._memories.setdefault((str(task.mix), task.policy), {}),
        )
        with chosen.applied(node):
            try:
                if chosen.mode:
                    learned = self._learned(task.mix, port)
                    self._start_agent(chosen.mode, service, learned, chosen.sched_idle)
                return self._measure(task, job, service, port, cgroup, knobs)
            finally:
                try:
                    self._session.cgroups.kill(cgroup)
                finally:
                    self._session.stop_agent()

    def _learned(self, mix: Mix, port: int) -> Path:
        """Return the data directory of an agent that watched the load of *mix* without a job."""
        service = SERVICES[mix.service]
        learned = self._session.home / f"learned-{mix.service}-{mix.shape}"
        if not learned.exists():
            print(f"compare: learning {mix.service} {mix.shape}, {LEARN_S:.0f} s", flush=True)
            self._start_agent("observe", service, None, sched_idle=False)
            try:
                start_ns = time.monotonic_ns() + round(_LEAD_S * NS_PER_SEC)
                segments = service.segments(mix.shape, LEARN_S)
                traffic = self._traffic(service, port, segments, start_ns)
                try:
                    traffic.run()
                finally:
                    traffic.stop()
            finally:
                self._session.stop_agent()
            self._data.rename(learned)
        return learned

    @property
    def _data(self) -> Path:
        return self._session.home / "data"

    def _start_agent(
        self, mode: str, service: Service, learned: Path | None, sched_idle: bool
    ) -> None:
        """Start an agent that has *learned*, and nothing from any other run."""
        shutil.rmtree(self._data, ignore_errors=True)
        if learned is not None:
            shutil.copytree(learned, self._data)
        self._session.start_agent(
            mode,
            profile=service.profile,
            sched_idle=sched_idle,
            network=NETWORK if service.remote else None,
        )

    def _traffic(
        self, service: Service, port: int, segments: Sequence[Segment], start_ns: int
    ) -> Traffic:
        return Traffic(service, port, segments, start_ns, self._session.home, self._link)

    def _measure(
        self,
        task: Task,
        job: BestEffort | None,
        service: Service,
        port: int,
        cgroup: str,
        knobs: CpuKnobs,
    ) -> Block:
        home = self._session.home
        segments = service.segments(task.mix.shape, self._seconds)
        start_ns = time.monotonic_ns() + round(_LEAD_S * NS_PER_SEC)
        output = home / f"{cgroup}.account"
        output.unlink(missing_ok=True)
        command = list(_FILLER) if job is None else job.command(output)
        join = partial(self._session.cgroups.join, cgroup, with_sockets=service.remote)
        traffic = self._traffic(service, port, segments, start_ns)
        try:
            time.sleep(max(0.0, (start_ns - time.monotonic_ns()) / NS_PER_SEC))
            before = self._accounts(cgroup)
            process = start(cgroup, command, home, join=join)
            with watched(knobs) as quota:
                intended, latency_ns = traffic.run()
            after = self._accounts(cgroup)
        finally:
            traffic.stop()
        used = {key: after[key] - before[key] for key in before}
        metrics = self._session.agent.metrics() if self._session.agent else None
        be_cpus = used["be"] / used["wall"]
        if job is None:
            process.stop()
            work = 0.0
        else:
            process.check()
            process.stop(job.stop_by, _OUTPUT_WITHIN_S)
            work = _work(job, output, be_cpus) / (time.monotonic() - before["wall"])
        wall = used["wall"] * (os.cpu_count() or 1)
        answered = latency_ns[latency_ns >= 0]
        return Block(
            mix=str(task.mix),
            policy=task.policy,
            round=task.round,
            p50_ms=float(np.median(answered)) / NS_PER_MS if len(answered) else math.inf,
            p99_ms=tuple(window_p99_ms(intended, latency_ns, start_ns, self._seconds)),
            failed=int((latency_ns < 0).sum()),
            requests=len(intended_ns(start_ns, segments)),
            work=work,
            unit="" if job is None else job.unit,
            ls_cpus=used["ls"] / used["wall"],
            be_cpus=be_cpus,
            writes=knobs.writes + agent_writes(metrics or ""),
            squeezes=quota.squeezes,
            lowest_quota_cpus=None if math.isinf(quota.lowest_cpus) else quota.lowest_cpus,
            agent_ticks=agent_ticks(metrics or ""),
            unaccounted_ratio=unaccounted_s(used, wall) / wall,
            steal_ratio=used["stolen"] / wall,
        )

    def _accounts(self, cgroup: str) -> dict[str, float]:
        """Return seconds so far: wall clock, CPU time of all cgroups and of two, and /proc/stat."""
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
            "idle": sum(fields[3:5]) / per_s,
            "interrupts": sum(fields[5:7]) / per_s,
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


def _work(job: BestEffort, output: Path, be_cpus: float) -> float:
    amount = job.work(output.read_text()) if output.exists() else None
    if amount is None and be_cpus > _NOTHING_CPUS:
        raise DemoError(f"{job.name} used {be_cpus:.2f} CPUs and left no account of its work")
    return amount or 0.0


def unaccounted_s(used: Mapping[str, float], wall_s: float) -> float:
    """Return how much of *wall_s* is in no account of *used*; negative: how much is in two.

    The kernel samples interrupts with the tick, and those beside a task are in its account as well
    (unless CONFIG_IRQ_TIME_ACCOUNTING), so they count only as far as something is missing.
    """
    missing_s = wall_s - used["tasks"] - used["idle"] - used["stolen"]
    return missing_s - min(max(missing_s, 0.0), used["interrupts"])


def window_p99_ms(
    intended: np.ndarray, latency_ns: np.ndarray, start_ns: int, seconds: float
) -> Iterator[float]:
    """Yield p99 in ms of each whole window of requests by intended time."""
    endless = np.where(latency_ns < 0, np.inf, latency_ns / NS_PER_MS)
    window = ((intended - start_ns) / (WINDOW_S * NS_PER_SEC)).astype(int)
    for number in range(int(seconds / WINDOW_S)):
        inside = endless[window == number]
        if len(inside) >= 20:
            yield float(np.quantile(inside, 0.99, method="higher"))


def _waited_ns(directory: Path, version: str) -> int:
    """Return how long the threads in the cgroup *directory* have waited for a CPU."""
    waited = 0
    file = "tasks" if version == "v1" else "cgroup.threads"
    for tid in (directory / file).read_text().split():
        with contextlib.suppress(OSError):
            waited += int(Path(f"/proc/{tid}/schedstat").read_text().split()[1])
    return waited
