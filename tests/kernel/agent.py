# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The complete agent, ``sweetpoint run`` in a process of its own, on cgroups of a test."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Protocol

from prometheus_client.parser import text_string_to_metric_families

from controller.demo.programs import free_port
from controller.host.facts import CgroupLayout
from tests.kernel.overload import PROFILE
from tests.support.cgroups import children_of
from tests.support.compiled import collect, lend
from tests.support.http import status_pages
from tests.support.waiting import DEADLINE_S, eventually

__all__ = ("AgentRun", "Site")


class Site:
    """A service and two best-effort cgroups, and a configuration that names them."""

    def __init__(self, root: Path, layout: CgroupLayout, home: Path) -> None:
        self.layout, self.home, self.root = layout, home, root
        if layout.version == "v2":
            (root / "cgroup.subtree_control").write_text("+cpu")
        (root / "batch").mkdir()
        if layout.version == "v2":
            (root / "batch" / "cgroup.subtree_control").write_text("+cpu")
        self.service = self._make("web")
        self.batch = [self._make("batch/one"), self._make("batch/two")]
        self.bystander = self._make("bystander")
        self.port = free_port()
        self.config = home / "config.yaml"
        self.write()

    def _make(self, name: str) -> Path:
        path = self.root / name
        path.mkdir()
        return path

    def path(self, cgroup: Path) -> str:
        """Return the path of *cgroup* in the notation of the configuration."""
        return "/" + str(cgroup.relative_to(self.layout.mount))

    def write(self, extra: str = "", mode: str = "enforce") -> None:
        """Write the configuration, followed by the lines *extra*."""
        self.config.write_text(
            f"mode: {mode}\n"
            f"http: 127.0.0.1:{self.port}\n"
            f"state_dir: {self.home}/state\ndata_dir: {self.home}/data\n"
            "workloads:\n"
            f"  - {{name: web, cgroup: {self.path(self.service)}, "
            "class: latency-sensitive, profile: nginx}\n"
            f'  - {{name: batch, cgroup: "{self.path(self.root)}/batch/*", class: best-effort}}\n'
            f"{extra}"
        )

    def tighten(self) -> None:
        """Give the service a sweet point that it misses beside a hog, and no sched-idle.

        A squeeze stays in force also where other work keeps the service waiting.
        """
        profile = PROFILE.replace("name: tight", "name: nginx").partition("evict:")[0]
        (self.home / "tight.yaml").write_text(profile)
        self.write("profiles: [tight.yaml]\nlaw: {verify_squeeze: false}\n")

    def idle(self, cgroup: Path) -> bool:
        """Whether sched-idle is set on *cgroup*."""
        return (cgroup / "cpu.idle").read_text().strip() == "1"

    def protected(self) -> bool:
        """Whether sched-idle is set where it places best-effort work behind the service."""
        return self.idle(self.root / "batch") and not any(map(self.idle, self.batch))

    def knobs(self) -> Mapping[str, str]:
        """Return the content of all CPU knob files below the root, by path."""
        return {
            str(file.relative_to(self.root)): file.read_text()
            for pattern in ("cpu.idle", "cpu.shares", "cpu.weight", "cpu.max", "cpu.cfs_*_us")
            for file in sorted(self.root.rglob(pattern))
        }


class Configured(Protocol):
    """Where an agent finds its configuration, where its pages are, and whether it enforces."""

    @property
    def config(self) -> Path: ...
    @property
    def port(self) -> int: ...
    def protected(self) -> bool: ...


class AgentRun:
    """One run of the agent; ``output`` is its stderr, complete once it has ended.

    :param without: a shell command that removes a feature of the host. It runs before the agent,
        in a mount namespace of its own.
    :param module: the command line.
    """

    def __init__(
        self,
        site: Configured,
        *arguments: str,
        without: str = "",
        module: str = "controller.cli.main",
    ) -> None:
        self._site = site
        lend(site.config)
        self.output = ""
        self.process = subprocess.Popen(
            [
                *(("unshare", "-m", "sh", "-ec", without + '; exec "$@"', "-") if without else ()),
                *(sys.executable, "-m", module, "run"),
                *("--config", str(site.config), *arguments),
            ],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        # A run of an hour writes more than a pipe holds.
        self._written: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            self._written.extend(lines)

    def __enter__(self) -> "AgentRun":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        if self.process.poll() is None:
            self.stop()
        if error is not None:
            error.add_note(f"the agent's log: {self.output}")

    def ready(self) -> "AgentRun":
        """Wait until the agent is ready, that is, measures."""
        eventually("ready", lambda: self.get("/readyz") or self.has_ended())
        assert self.process.poll() is None, f"the agent ended: {self.output}"
        return self

    def has_ended(self) -> bool:
        """Whether the process has ended; then ``output`` is complete."""
        if ended := self.process.poll() is not None:
            self.wait()
        return ended

    def enforcing(self) -> "AgentRun":
        """Wait until sched-idle is set on best-effort work."""
        eventually("enforcing", self._site.protected)
        return self

    def get(self, page: str) -> str | None:
        """Return the text of *page*; ``None`` without an answer or with an error status."""
        try:
            status, text = status_pages.get(self._site.port, page)
        except OSError:
            return None
        return text if status == HTTPStatus.OK else None

    def status(self) -> dict[str, Any]:
        return dict(json.loads(eventually("the status page", lambda: self.get("/statusz")) or ""))

    def because(self, service: str) -> str | None:
        """Return why *service* is slow, by the last tick; ``None`` while it is not."""
        slow = self.status()["plan"]["slow"]
        return next((str(each["because"]) for each in slow if each["service"] == service), None)

    def metrics(self) -> str:
        """Return the page of all metrics."""
        return eventually("the metrics", lambda: self.get("/metrics")) or ""

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the samples of the metric *name* by the values of their labels."""
        families = text_string_to_metric_families(self.metrics())
        samples = [sample for family in families for sample in family.samples]
        return {tuple(s.labels.values()): s.value for s in samples if s.name == name}

    def ticks(self) -> int:
        """Return how many ticks have ended."""
        return int(self.status()["tick"]["count"])

    def watch(self, ticks: int, check: Callable[[], object] = lambda: None) -> None:
        """Call *check*, which asserts something, during *ticks* more ticks.

        So the agent has had the chance to do what the check rules out.
        """
        until = self.ticks() + ticks + 1  # one has begun already
        while self.ticks() < until:
            check()
            time.sleep(0.02)

    def pids(self) -> tuple[int, int]:
        """Return the pids of the guardian and of the agent."""
        found = eventually("an agent", lambda: [*filter(_leads, children_of(self.process.pid))])
        return self.process.pid, found[0]

    def kill_agent(self) -> None:
        """Kill the agent, and wait until the guardian has started another one."""
        _, agent = self.pids()
        os.kill(agent, signal.SIGKILL)
        eventually("another agent", lambda: self.pids()[1] != agent)

    def kill_both(self) -> None:
        """Kill guardian and agent, which have no time to restore anything."""
        guardian, agent = self.pids()
        os.kill(agent, signal.SIGSTOP)  # otherwise it restores when the guardian dies
        os.kill(guardian, signal.SIGKILL)
        os.kill(agent, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def wait(self) -> int:
        """Wait until the process has ended and return its exit code."""
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        assert not self._reader.is_alive(), "another process has the agent's stderr"
        self.output = "".join(self._written)
        collect(self._site.config)
        return code

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send the signal *number*, wait for the end and return the exit code."""
        self.process.send_signal(number)
        return self.wait()


def _leads(pid: int) -> bool:
    """Whether *pid* leads a session, as an agent does and a restore does not."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False
