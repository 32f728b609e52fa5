# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The real agent as a child of the demonstration: its configuration, its start, its state."""

from collections.abc import Mapping
import http.client
import json
from pathlib import Path
import signal
import sys
import time
from typing import Any

import yaml

from controller.demo.cgroups import DemoError
from controller.demo.programs import free_port, start
from controller.resources import profiles_dir

__all__ = ("Agent", "write_config")

READY_WITHIN_S = 20.0
STOP_WITHIN_S = 15.0
ANSWER_WITHIN_S = 2.0
PROFILE = "nginx"
# What the quota loop is shown with; one sweet point moves.
INDICATOR = "runq_delay_p99"


def write_config(
    home: Path, cgroup: str, port: int, *, sweet_point: str | None = None, quota_only: bool = False
) -> Path:
    """Write a configuration for the cgroups below *cgroup* into *home* and return its path.

    With *quota_only* the profile leaves sched-idle off; *sweet_point* replaces that of the
    profile.
    """
    profile = yaml.safe_load((profiles_dir() / f"{PROFILE}.yaml").read_text())
    if sweet_point is not None:
        profile["indicators"][INDICATOR]["sweet_point"] = sweet_point
    if quota_only:
        profile["sched_idle"] = False
        profile["indicators"] = {INDICATOR: profile["indicators"][INDICATOR]}
    config = {
        "state_dir": str(home / "state"),
        "http": f"127.0.0.1:{port}",
        "workloads": [
            {
                "name": "web",
                "cgroup": f"{cgroup}/ls",
                "class": "latency-sensitive",
                "profile": PROFILE,
            },
            {"name": "batch", "cgroup": f"{cgroup}/be-*", "class": "best-effort"},
        ],
        "profiles": ["profile.yaml"],
    }
    (home / "profile.yaml").write_text(yaml.safe_dump(profile, sort_keys=False))
    path = home / "config.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


class Agent:
    """``sweetpoint run`` in *mode*, asked for its state over HTTP."""

    def __init__(self, home: Path, cgroup: str, mode: str, **profile: Any) -> None:
        self._home, self._cgroup = home, cgroup
        self._port = free_port()
        config = write_config(home, cgroup, self._port, **profile)
        command = [sys.executable, "-m", "controller.cli", "run"]
        command += ["--config", str(config), "--mode", mode]
        # A dying agent restores what it changed, so it gets the chance to.
        self.process = start("agent", command, home, dies_by=signal.SIGTERM)

    def wait_until_ready(self) -> None:
        """Return when the agent measures.

        :raises DemoError: it ended, or is not ready in time.
        """
        deadline_s = time.monotonic() + READY_WITHIN_S
        while self._get("/readyz") is None:
            self.process.check()
            if time.monotonic() > deadline_s:
                words = self.process.log.read_text(errors="replace").strip().splitlines()[-3:]
                raise DemoError(f"the agent is not ready: {' | '.join(words) or 'no message'}")
            time.sleep(0.1)

    def set_sweet_point(self, sweet_point: str) -> None:
        """Change the sweet point of the quota-only profile while the agent runs."""
        write_config(self._home, self._cgroup, self._port, sweet_point=sweet_point, quota_only=True)
        self.process.popen.send_signal(signal.SIGHUP)

    def status(self) -> Mapping[str, Any] | None:
        """Return the agent's state, None when it does not answer in time."""
        body = self._get("/statusz")
        return json.loads(body) if body is not None else None

    def stop(self) -> None:
        """End the agent; it restores every knob first."""
        self.process.stop(signal.SIGTERM, STOP_WITHIN_S)

    def _get(self, path: str) -> bytes | None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_WITHIN_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.read() if response.status == http.HTTPStatus.OK else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
