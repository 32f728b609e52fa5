# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A real service under a constant rate of requests, in a cgroup beside one for best-effort work."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
from pathlib import Path
import subprocess
import sys
import time

from controller.core.model import CgroupId, QosClass, Workload
from controller.demo.programs import Process, free_port, start, start_nginx
from controller.host.facts import CgroupLayout

__all__ = ("RATE", "REQUESTS", "Scene")

RATE = 4_000
CONNECTIONS = 8
# The client adds the end of a line.
REQUESTS: Mapping[str, str] = {
    "memcached": "get sweetpoint",
    "redis": "GET sweetpoint",
    "nginx": "GET /page HTTP/1.1\r\nHost: localhost\r\n",
}
_COMMANDS: Mapping[str, Callable[[int], list[str]]] = {
    "memcached": lambda port: [
        *("memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", str(port), "-t", "2")
    ],
    "redis": lambda port: [
        *("redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1")
    ],
}


class Scene:
    """The cgroups of a service and of its neighbour, which is under sched-idle."""

    def __init__(self, cpu: Path, cgroup2: Path, layout: CgroupLayout, home: Path) -> None:
        self.home = home
        self._parents = tuple(dict.fromkeys((cpu, cgroup2)))
        for parent in self._parents:
            for name in ("service", "batch"):
                (parent / name).mkdir(parents=True, exist_ok=True)
        (cpu / "batch" / "cpu.idle").write_text("1")
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
    def serving(self, service: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run *service*, a key of ``REQUESTS``, and the client that is returned."""
        with contextlib.ExitStack() as stack:
            if service == "nginx":
                server, port = start_nginx(self.home, join=self._join("service"))
            else:
                port = free_port()
                server = self.start("service", service, _COMMANDS[service](port))
                time.sleep(1.0)
            stack.callback(server.stop)
            load = Path(__file__).with_name("kv_load.py")
            words = [str(port), str(RATE), str(CONNECTIONS), REQUESTS[service]]
            client = subprocess.Popen([sys.executable, "-S", str(load), *words])
            stack.callback(client.wait)
            stack.callback(client.kill)
            time.sleep(2.0)
            yield client

    def _join(self, cgroup: str) -> Callable[[], None]:
        def join() -> None:
            for parent in self._parents:
                (parent / cgroup / "cgroup.procs").write_text("0")

        return join
