# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The whole agent as its user starts it: ``sweetpoint run`` on cgroups of a test."""

from collections.abc import Mapping
import json
from pathlib import Path
import signal
import subprocess
import sys
import time
from typing import Any
import urllib.error
import urllib.request

from controller.demo.programs import free_port
from controller.host.facts import CgroupLayout

__all__ = ("AgentRun", "Site", "eventually")


def eventually(what: str, seconds: float, check: Any) -> Any:
    """Return the first true answer of *check*, asked for up to *seconds*."""
    deadline = time.monotonic() + seconds
    while not (answer := check()):
        assert time.monotonic() < deadline, f"not in {seconds:g}s: {what}"
        time.sleep(0.02)
    return answer


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
        """Return *cgroup* as the configuration names it."""
        return "/" + str(cgroup.relative_to(self.layout.mount))

    def write(self, extra: str = "", mode: str = "enforce") -> None:
        """Write the configuration, *extra* lines behind it."""
        self.config.write_text(
            f"mode: {mode}\n"
            f"http: 127.0.0.1:{self.port}\n"
            f"state_dir: {self.home}/state\n"
            "workloads:\n"
            f"  - {{name: web, cgroup: {self.path(self.service)}, "
            "class: latency-sensitive, profile: nginx}\n"
            f'  - {{name: batch, cgroup: "{self.path(self.root)}/batch/*", class: best-effort}}\n'
            f"{extra}"
        )

    def idle(self, cgroup: Path) -> bool:
        """Whether *cgroup* is sched-idle now."""
        return (cgroup / "cpu.idle").read_text().strip() == "1"

    def protected(self) -> bool:
        """Whether sched-idle is where it orders best-effort work behind the service."""
        return self.idle(self.root / "batch") and not any(map(self.idle, self.batch))

    def knobs(self) -> Mapping[str, str]:
        """Return every knob file of every cgroup here."""
        return {
            str(file.relative_to(self.root)): file.read_text()
            for pattern in ("cpu.idle", "cpu.shares", "cpu.weight", "cpu.max", "cpu.cfs_*_us")
            for file in sorted(self.root.rglob(pattern))
        }


# Half a second here, a minute and a half in the emulated test kernel.
START_S = 180


class AgentRun:
    """One run of the agent; ``output`` is all that it said once it has ended.

    *without* is a command that takes something from the host, in a mount namespace of its own.
    """

    def __init__(self, site: Site, *arguments: str, without: str = "") -> None:
        self._site = site
        self.output = ""
        self.process = subprocess.Popen(
            [
                *(("unshare", "-m", "sh", "-ec", without + '; exec "$@"', "-") if without else ()),
                *(sys.executable, "-m", "controller.cli.main", "run"),
                *("--config", str(site.config), *arguments),
            ],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> "AgentRun":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()

    def ready(self) -> "AgentRun":
        """Wait until it measures."""
        eventually("ready", START_S, lambda: self.get("/readyz") or self._has_ended())
        assert self.process.poll() is None, f"it ended: {self.output}"
        return self

    def _has_ended(self) -> bool:
        if ended := self.process.poll() is not None:
            self.wait()
        return ended

    def enforcing(self) -> "AgentRun":
        """Wait until best-effort work is sched-idle."""
        eventually("enforcing", START_S, self._site.protected)
        return self

    def get(self, page: str) -> str | None:
        """Return the text of *page*; None when it is not there or not well."""
        try:
            url = f"http://127.0.0.1:{self._site.port}{page}"
            with urllib.request.urlopen(url, timeout=2) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError):
            return None

    def status(self) -> dict[str, Any]:
        text = self.get("/statusz")
        assert text is not None
        return dict(json.loads(text))

    def pids(self) -> tuple[int, int]:
        """Return the pids of guardian and agent."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        agent = eventually("an agent", 5, lambda: children.read_text().split())
        return self.process.pid, int(agent[0])

    def wait(self, seconds: float = 20) -> int:
        """Wait for its end and return the exit code."""
        _, self.output = self.process.communicate(timeout=seconds)
        return self.process.returncode

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.wait()
