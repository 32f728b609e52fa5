# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Injected causes beside an agent that observes, and the verdicts that it tells on a service."""

from collections.abc import Iterator
import contextlib
from pathlib import Path
import socket
import threading
import time

from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh

__all__ = ("Figure", "Slow", "pushing")

_PROFILE = """\
name: nginx
indicators:
  service: {sweet_point: 20ms}
sched_idle: false
"""


class Slow:
    """The verdicts on ``web`` while an agent runs on *site*; ``told`` are all that it told."""

    def __init__(self, site: Site) -> None:
        self.site = site
        # Before the rest of this machine, so that its waits are those of the test.
        outweigh(site.root, 200)
        site.tighten()
        # Nothing that the agent does changes the cause.
        observing = site.config.read_text().replace("mode: enforce", "mode: observe")
        site.config.write_text(observing)
        self.shop = self._add("shop, class: latency-sensitive, profile: nginx")
        self.backup = self._add("backup, class: system")
        self.told: set[str] = set()

    @property
    def blamed_best_effort(self) -> bool:
        """Whether a verdict was told that names best-effort work.

        The page also has verdicts of a single moment. They may name a job that wakes up just then.
        """
        return any(each.startswith("slow (best-effort ") for each in self.told)

    def _add(self, workload: str) -> Path:
        name, text = workload.partition(",")[0], self.site.config.read_text()
        path = self.site.root / name
        path.mkdir()
        line = f"  - {{cgroup: {self.site.path(path)}, name: {workload}}}\n"
        self.site.config.write_text(text.replace("profiles:", f"{line}profiles:"))
        return path

    def limit(self) -> None:
        """Give the service a limit of 3 % of a CPU."""
        name, value = "cpu.max", "3000 100000"
        if self.site.layout.version == "v1":
            name, value = "cpu.cfs_quota_us", "3000"
        (self.site.service / name).write_text(value)

    def wait_for(self, text: str, agent: AgentRun, *cgroups: Path) -> None:
        """Let one job work in each of *cgroups* until a verdict was told that begins with *text*.

        The best-effort work sleeps where it has no job there.
        """
        work = [Load(self.site.service, "bursts", CPU)]
        work += [Load(each, "hog", CPU) for each in cgroups]
        work += [Load(each, "idle") for each in self.site.batch if each not in cgroups]
        with loads(work) as running:
            begin_s = time.monotonic()
            running.work_until(text, lambda: self.is_told(agent, text))
            print(f"{time.monotonic() - begin_s:.1f} s: {text}")

    def wait_for_none(self, agent: AgentRun) -> None:
        """Work alone until a verdict was told that names no workload.

        The rest of the machine works too, so that it may be named, or the host.
        """
        texts = ("elsewhere)", "other-work /", "host)")
        with loads([Load(self.site.service, "bursts", CPU)]) as running:
            running.work_until("a verdict without a workload", lambda: self.is_told(agent, *texts))

    def is_told(self, agent: AgentRun, *texts: str) -> bool:
        """Return whether *agent* told a verdict on ``web`` that begins with one of *texts*."""
        told = [each["text"] for each in agent.status()["decisions"] if each["subject"] == "web"]
        self.told.update(told)
        return any(each.startswith(f"slow ({text}") for each in told for text in texts)


class Figure:
    """The figure of the service ``web``, its only indicator; ``value_ms`` may be changed."""

    def __init__(self, value_ms: int) -> None:
        self.value_ms = value_ms
        self.ended = threading.Event()

    def push(self, path: Path) -> None:
        """Send the figure to *path* ten times a second until ``ended``."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            while not self.ended.wait(0.1):
                with contextlib.suppress(OSError):  # the agent does not listen yet, or any more
                    sender.sendto(f"web {self.value_ms}".encode(), str(path))


@contextlib.contextmanager
def pushing(site: Site, value_ms: int) -> Iterator[Figure]:
    """Push the figure of the service, which has no other indicator; its sweet point is 20 ms."""
    path, figure = site.home / "push.sock", Figure(value_ms)
    (site.home / "tight.yaml").write_text(_PROFILE)
    with site.config.open("a") as config:
        config.write(f"service_level:\n  socket: {path}\n  services:\n")
        config.writelines(f"    {name}: {{push: {{}}, unit: ms}}\n" for name in ("web", "shop"))
    pusher = threading.Thread(target=figure.push, args=(path,))
    pusher.start()
    try:
        yield figure
    finally:
        figure.ended.set()
        pusher.join()
