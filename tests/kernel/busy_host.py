# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A host with two services, three jobs and a load outside all workloads, in cgroups of a test.

nginx serves requests of a client on loopback; the other service has short bursts. A job is steady,
one comes and goes, one is light. The load of nobody comes and goes too.
"""

from collections.abc import Iterator, Sequence
import contextlib
import os
from pathlib import Path
import random
import tempfile
import time

from controller.host.facts import CgroupLayout
from tests.compare.services import SERVICES, Traffic
from tests.kernel.agent import Site
from tests.kernel.loads import Load, Running, loads
from tests.kernel.overload import CPU

__all__ = (
    "JOBS",
    "SERVICE_NAMES",
    "BusyHost",
    "Visits",
    "innocent",
    "quota_cpus",
    "visiting",
)

JOBS = ("batch:one", "batch:two", "batch:three")
SERVICE_NAMES = ("web", "store")
# Requests per second: less than a tenth of what the service can answer.
_RATE = 300.0
_PROFILES = {
    "web": "runq_delay_p99: {sweet_point: 1ms, filter: 2s}\n"
    "  runq_p99: {sweet_point: 2ms, filter: 2s}",
    "store": "runq_p99: {sweet_point: 1ms, resolution: 20us, filter: 2s}",
}
# Sweet points that the service misses beside any load on its CPU.
_TIGHT = {"web": "runq_p99: {sweet_point: 100us, resolution: 10us, filter: 2s}"}


class BusyHost(Site):
    """The cgroups and the configuration; ``outside`` is in no workload."""

    def __init__(self, root: Path, layout: CgroupLayout, home: Path) -> None:
        super().__init__(root, layout, home)
        self.store = self._make("store")
        self.batch.append(self._make("batch/three"))

    @property
    def outside(self) -> Path:
        """The cgroup of the load that is no workload."""
        return self.bystander

    @property
    def job_cgroups(self) -> dict[str, Path]:
        """The cgroups of the jobs by name."""
        return dict(zip(JOBS, self.batch, strict=True))

    def write(
        self,
        extra: str = "",
        mode: str = "enforce",
        sched_idle: str = "false",
        tight: bool = False,
    ) -> None:
        """Write the configuration and the profiles; *tight*: the first service always suffers."""
        for name, indicators in (_PROFILES | (_TIGHT if tight else {})).items():
            (self.home / f"{name}.yaml").write_text(
                f"name: {name}\nindicators:\n  {indicators}\n"
                f"channels: [cpu]\nsched_idle: {sched_idle}\n"
            )
        services = "".join(
            f"  - {{name: {name}, cgroup: {self.path(self.root)}/{name}, "
            f"class: latency-sensitive, profile: {name}}}\n"
            for name in SERVICE_NAMES
        )
        self.config.write_text(
            f"mode: {mode}\n"
            f"http: 127.0.0.1:{self.port}\n"
            f"state_dir: {self.home}/state\ndata_dir: {self.home}/data\n"
            f"profiles: [{', '.join(f'{name}.yaml' for name in SERVICE_NAMES)}]\n"
            f"workloads:\n{services}"
            f'  - {{name: batch, cgroup: "{self.path(self.root)}/batch/*", class: best-effort}}\n'
            f"{extra}"
        )

    def move(self, home: Path) -> None:
        """Let the next agent begin with nothing, in the new directory *home*, and be tight."""
        home.mkdir()
        self.home, self.config = home, home / "config.yaml"
        self.write(tight=True)

    def quotas(self) -> dict[str, float | None]:
        """Return the quota of each job in CPUs, as the kernel has it."""
        return {name: quota_cpus(cgroup) for name, cgroup in self.job_cgroups.items()}

    def idle_jobs(self) -> frozenset[str]:
        """Return the jobs that the kernel places behind others by cpu.idle."""
        batch = self.idle(self.root / "batch")
        return frozenset(n for n, cgroup in self.job_cgroups.items() if batch or self.idle(cgroup))

    @contextlib.contextmanager
    def serving(self, seconds: float, service: str = "nginx") -> Iterator[Traffic]:
        """Run *service*, a key of ``SERVICES``, whose client ends after *seconds* at the latest."""

        def join() -> None:
            (self.service / "cgroup.procs").write_text(str(os.getpid()))

        with tempfile.TemporaryDirectory(prefix="sweetpoint-test-") as directory:
            home = Path(directory)
            home.chmod(0o755)  # nginx's workers run as another user and read the page here
            with SERVICES[service].running(home, join) as port:
                start_ns = time.monotonic_ns() + 3 * 10**9
                traffic = Traffic(SERVICES[service], port, [(seconds, _RATE)], start_ns, home)
                try:
                    yield traffic
                finally:
                    traffic.stop()


def quota_cpus(cgroup: Path) -> float | None:
    """Return the quota of *cgroup* in CPUs, as the kernel has it; ``None``: it has none."""
    if (cgroup / "cpu.max").exists():
        quota, period = (cgroup / "cpu.max").read_text().split()
    else:
        files = (cgroup / "cpu.cfs_quota_us", cgroup / "cpu.cfs_period_us")
        quota, period = (file.read_text().strip() for file in files)
    return None if quota in ("max", "-1") else int(quota) / int(period)


class Visits:
    """Loads that come and go at random times, within the given seconds."""

    def __init__(
        self,
        running: Running,
        numbers: random.Random,
        on_s: tuple[float, float],
        off_s: tuple[float, float],
    ) -> None:
        self._running, self._numbers = running, numbers
        self._spans_s = {True: on_s, False: off_s}
        self._on = False
        self._next_s = time.monotonic() + numbers.uniform(*off_s)

    def poll(self) -> None:
        """Start or stop the loads if it is time to."""
        if time.monotonic() >= self._next_s:
            self._on = not self._on
            (self._running.start if self._on else self._running.stop)()
            self._next_s = time.monotonic() + self._numbers.uniform(*self._spans_s[self._on])


@contextlib.contextmanager
def innocent(host: BusyHost, numbers: random.Random) -> Iterator[tuple[Running, Sequence[Visits]]]:
    """Run a light job beside loads outside all workloads, which come and go when they are polled.

    The job comes first.
    """
    light = Load(host.batch[2], "light")
    outside = [Load(host.outside, "hog", cpu) for cpu in 3 * sorted(os.sched_getaffinity(0))]
    with loads([light]) as job, loads(outside) as running:
        job.start()
        yield job, [Visits(running, numbers, (5, 20), (2, 10))]


@contextlib.contextmanager
def visiting(host: BusyHost, numbers: random.Random) -> Iterator[Sequence[Visits]]:
    """Run all loads of *host* but nginx; those that come and go wait to be polled."""
    with contextlib.ExitStack() as stack:

        def begun(cgroup: Path, kind: str, cpu: int = -1) -> Running:
            return stack.enter_context(loads([Load(cgroup, kind, cpu)]))

        begun(host.store, "bursts", CPU).start()
        begun(host.batch[2], "light").start()
        yield (
            Visits(begun(host.batch[0], "hog", CPU), numbers, (120, 240), (20, 60)),
            Visits(begun(host.batch[1], "hog"), numbers, (10, 60), (10, 60)),
            Visits(begun(host.outside, "hog", CPU), numbers, (10, 40), (30, 90)),
        )
