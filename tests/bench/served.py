# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A real service under a constant rate of requests, in a cgroup beside one for best-effort work."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
from pathlib import Path
import time

from controller.core.model import CgroupId, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.demo.programs import Process, start
from controller.host.facts import CgroupLayout
from tests.compare.client import Segment
from tests.compare.services import SERVICES, Traffic

__all__ = ("RATE", "Scene")

RATE = 4_000
_LEAD_S = 3.0
_SECONDS = 3600.0  # longer than any benchmark


class Scene:
    """The cgroups of a service and of two neighbours, ``batch`` and ``other``, under sched-idle."""

    def __init__(self, cpu: Path, cgroup2: Path, layout: CgroupLayout, home: Path) -> None:
        self.home = home
        self._parents = tuple(dict.fromkeys((cpu, cgroup2)))
        for parent in self._parents:
            for name in ("service", "batch", "other"):
                (parent / name).mkdir(parents=True, exist_ok=True)
        for name in ("batch", "other"):
            (cpu / name / "cpu.idle").write_text("1")
        self.cpu = cpu
        # Tasks outside these cgroups shall not delay the service either.
        weight = "cpu.weight" if layout.version == "v2" else "cpu.shares"
        (cpu / "service" / weight).write_text("10000")
        service = cpu / "service"
        self.workload = Workload(
            name="service",
            cgroup=CgroupId(layout.hierarchy, service.stat().st_ino),
            path=f"/{service.relative_to(layout.mount)}",
            qos=QosClass.LS,
            service="service",
            profile="",
        )

    def start(self, cgroup: str, name: str, command: list[str]) -> Process:
        return start(name, command, self.home, join=self._join(cgroup))

    @contextlib.contextmanager
    def serving(self, service: str, rate: float = RATE) -> Iterator[Traffic]:
        """Run *service*, a key of ``SERVICES``, under *rate* requests/s."""
        with self.running(service) as port, self.load(service, port, [(_SECONDS, rate)]) as traffic:
            time.sleep(1.0)
            yield traffic

    def running(self, service: str) -> contextlib.AbstractContextManager[int]:
        """Run *service*, a key of ``SERVICES``; its port."""
        return SERVICES[service].running(self.home, self._join("service"))

    @contextlib.contextmanager
    def load(self, service: str, port: int, segments: Sequence[Segment]) -> Iterator[Traffic]:
        """Send requests to *service* on *port*, from now on."""
        start_ns = time.monotonic_ns() + round(_LEAD_S * NS_PER_SEC)
        traffic = Traffic(SERVICES[service], port, segments, start_ns, self.home)
        try:
            time.sleep(_LEAD_S)
            yield traffic
        finally:
            traffic.stop()

    def _join(self, cgroup: str) -> Callable[[], None]:
        def join() -> None:
            for parent in self._parents:
                (parent / cgroup / "cgroup.procs").write_text("0")

        return join
