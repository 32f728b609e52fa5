# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent as a child process of the demonstration: configuration, start, stop, state.

The state comes from the agent's ``/statusz``, of which ``parse_status`` extracts the numbers that
the demonstration records.
"""

from collections.abc import Mapping
import http.client
import json
from pathlib import Path
import signal
import time
from typing import Any

import yaml

from controller.core.units import NS_PER_MS
from controller.demo.cgroups import DemoError
from controller.demo.programs import free_port, start
from controller.host.package_data import profiles_dir
from controller.host.python_child import python_child

__all__ = (
    "Agent",
    "parse_status",
    "write_config",
)

READY_WITHIN_S = 60.0
STOP_WITHIN_S = 15.0
ANSWER_WITHIN_S = 2.0
PROFILE = "nginx"
# The only indicator in the phases of the quota loop, which change its sweet point.
INDICATOR = "runq_delay_p99"


def write_config(
    home: Path,
    cgroup: str,
    port: int,
    *,
    profile: str = PROFILE,
    sweet_point: str | None = None,
    sched_idle: bool = True,
    quota_only: bool = False,
    network: Mapping[str, Any] | None = None,
    service: str = "ls",
    jobs: str = "be-*",
    more: Mapping[str, Any] | None = None,
) -> Path:
    """Write a configuration for the cgroups below *cgroup* into *home* and return its path.

    *profile* is the name of a shipped one. *sweet_point* (such as ``2ms``) replaces the sweet point
    of the indicator in it. *sched_idle*: whether best-effort work is set idle. With *quota_only* it
    is not, and the profile has no other indicator. *network* is that section, *more* has others.
    *service* and *jobs* are the workloads, below *cgroup*.
    """
    content = yaml.safe_load((profiles_dir() / f"{profile}.yaml").read_text())
    if sweet_point is not None:
        content["indicators"][INDICATOR]["sweet_point"] = sweet_point
    if quota_only or not sched_idle:
        content["sched_idle"] = False
    if quota_only:
        content["indicators"] = {INDICATOR: content["indicators"][INDICATOR]}
    config = {
        "state_dir": str(home / "state"),
        "data_dir": str(home / "data"),
        "http": f"127.0.0.1:{port}",
        "workloads": [
            {
                "name": "web",
                "cgroup": f"{cgroup}/{service}",
                "class": "latency-sensitive",
                "profile": content["name"],
            },
            {"name": "batch", "cgroup": f"{cgroup}/{jobs}", "class": "best-effort"},
        ],
        "profiles": ["profile.yaml"],
        **({"network": network} if network else {}),
        **(more or {}),
    }
    (home / "profile.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    path = home / "config.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


class Agent:
    """A process of ``sweetpoint run`` in *mode*, with its HTTP pages as the source of its state."""

    def __init__(self, home: Path, cgroup: str, mode: str, **profile: Any) -> None:
        self._home, self._cgroup = home, cgroup
        self._port = free_port()
        config = write_config(home, cgroup, self._port, **profile)
        run = ("run", "--config", str(config), "--mode", mode)
        command = python_child("controller.cli.main", *run)
        # SIGTERM and not SIGKILL if this process dies: the agent then restores its knobs.
        self.process = start("agent", command, home, dies_by=signal.SIGTERM)

    def wait_until_ready(self) -> None:
        """Block until the agent measures.

        :raises DemoError: the agent ended, or is not ready within 20 s.
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
        """Return the agent's ``/statusz``, ``None`` without an answer within 2 s."""
        body = self._get("/statusz")
        return json.loads(body) if body is not None else None

    def metrics(self) -> str | None:
        """Return the text of the agent's metrics, ``None`` without an answer within 2 s."""
        body = self._get("/metrics")
        return body.decode() if body is not None else None

    def stop(self) -> None:
        """End the agent, which restores every knob first."""
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


# Fields of ``results.Sample`` for the value and the sweet point of each indicator.
_INDICATORS = {
    "runq_p99": ("runq_p99_ms", "sweet_point_ms"),
    "runq_delay_p99": ("delay_p99_ms", "delay_sweet_point_ms"),
}


def parse_status(status: Mapping[str, Any], be_prefix: str) -> dict[str, Any]:
    """Return those fields of ``results.Sample`` that *status* contains.

    *be_prefix* is the common prefix of the paths of the best-effort cgroups.
    """
    plan = status.get("plan") or {}
    loops = [loop for loop in plan.get("loops", ()) if loop["indicator"] in _INDICATORS]
    found: dict[str, Any] = {}
    for loop in loops:
        value, sweet_point = _INDICATORS[loop["indicator"]]
        if loop["value"] is not None:
            found[value] = loop["value"] / NS_PER_MS
        found[sweet_point] = loop["sweet_point"] / NS_PER_MS
    for name in ("deviation", "filtered_deviation"):
        known = [loop[name] for loop in loops if loop[name] is not None]
        if known:
            found[name] = max(known)
    for demand in plan.get("demands", ()):
        if demand["channel"] == "cpu":
            found["demand"], found["state"] = demand["applied"], demand["state"]
    return found | _knobs(status.get("knobs", ()), be_prefix)


def _knobs(knobs: Any, be_prefix: str) -> dict[str, Any]:
    idle, quotas = [], []
    for knob in knobs:
        if not str(knob["path"]).startswith(be_prefix) or not knob["applied"]:
            continue
        words = str(knob["applied"]).split()
        if knob["knob"] == "cpu.idle":
            idle.append(words[0] == "1")
        elif knob["knob"] == "cpu.quota" and words[0] != "max":
            quotas.append(int(words[0]) / int(words[1]))
    found: dict[str, Any] = {}
    if idle:
        found["be_idle"] = any(idle)
    if quotas:
        found["be_quota_cpus"] = min(quotas)
    return found
