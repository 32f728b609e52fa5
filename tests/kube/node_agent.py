# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent on a real node, outside its pods, a service that suffers, and work that it squeezes."""

import json
import os
from pathlib import Path
import signal
import sys

import yaml

from controller.demo.programs import Process, start
from tests.kube.client import Json
from tests.kube.node_programs import NODE
from tests.kube.real_node import RealNode
from tests.support.cgroups import children_of
from tests.support.waiting import DEADLINE_S

__all__ = ("BATCH", "HOG", "PROFILE", "SERVICE", "Agent")

BATCH = {"sweetpoint.dev/qos": "best-effort"}
HOG = "while :; do :; done"
_BURSTS = "while :; do sleep 0.02; i=0; while [ $i -lt 1000 ]; do i=$((i + 1)); done; done"
# Its processes, two for each CPU, wait for each other, also beside squeezed work.
SERVICE = f"n=$((2 * $(nproc))); while [ $n -gt 0 ]; do n=$((n - 1)); {{ {_BURSTS}; }} & done; wait"
# With a service that always waits it squeezes best-effort work to its floor and keeps it there.
PROFILE = {
    "name": "default",
    "description": "test",
    "indicators": {
        "runq_p99": {
            **{"sweet_point": "20us", "resolution": "10us", "window": "1s", "filter": "0s"},
            **{"gains": {"kp": 1, "ti": "200ms"}, "channel": "cache"},
        }
    },
    # On the cpu channel a loop asks for no more than best-effort's part of the wait, which is
    # little on a busy machine. On this one the evidence is the use of best-effort work.
    "channels": ["cache"],
    "be_share_min": "0%",
    # More than the quota of a service with the limit 100m.
    "cpu_burst": "20ms",
}


class Agent:
    """The agent on the node, outside its pods; *kubernetes* and *nri* are more for those sections.

    On a busy machine a container may get little anyway; below its *floor* it has no quota.
    """

    def __init__(
        self,
        node: RealNode,
        home: Path,
        kubernetes: Json | None = None,
        floor: str = "40mcpu",
        nri: Json | None = None,
    ) -> None:
        self._node, self._home = node, home
        self._knobs = {"cpu.quota": {"floor": floor, "squeeze": "10/s"}}
        self._process: Process | None = None
        self._profile = home / "default.yaml"
        config = {
            **{"mode": "enforce", "profiles": [str(self._profile)]},
            **{"state_dir": f"{home}/state", "data_dir": f"{home}/data"},
            "kubernetes": {
                **{"node": NODE, "kubeconfig": str(node.admin_kubeconfig)},
                **(kubernetes or {}),
            },
            "nri": nri or {},
            # The waits of the service for itself would end the squeeze for half a minute.
            "law": {"verify_squeeze": False},
        }
        (home / "config.yaml").write_text(yaml.safe_dump(config))

    def start(self, *, yields: bool = True) -> None:
        """Start the agent and wait until it controls.

        *yields*: best-effort work has the lowest weight while the service runs.
        """
        profile = PROFILE | {"sched_idle": yields, "knobs": self._knobs}
        self._profile.write_text(yaml.safe_dump(profile))
        program = (sys.executable, "-m", "controller.cli.main")
        command = [*program, "run", "--config", str(self._home / "config.yaml")]
        host = self._node.host
        process = start("agent", host.inside(command), self._home, join=host.join)
        self._process = process
        began = process.log.stat().st_size

        def is_enforcing() -> bool:
            process.check()
            return "enforce every" in process.log.read_text()[began:]

        self._node.wait("the agent", is_enforcing)

    def status(self) -> Json:
        """Return the state of the agent."""
        url = "http://127.0.0.1:9464/statusz"
        return dict(json.loads(self._node.host.run("busybox", "wget", "-qO-", url)))

    def doorbell(self) -> Json:
        """Return the state of the agent's plugin of the container runtime."""
        found: Json = self.status()["nri"]
        return found

    def wait_for_plugin(self) -> None:
        """Wait until the container runtime knows the agent's plugin."""

        def is_known() -> bool:
            # The page has little before the first tick.
            state = self.status().get("nri")
            return state is not None and not state["problem"]

        self._node.wait("the agent's plugin", is_known)

    def answers(self) -> int:
        """Return how many answers the container runtime got."""
        state = self.doorbell()
        return int(state["in_time"]) + int(state["late"])

    def stop(self) -> None:
        """End the agent, which restores every knob."""
        if self._process is not None:
            process, self._process = self._process, None
            process.stop(within_s=DEADLINE_S)
            assert process.popen.returncode == 0, process.log.read_text()

    def kill(self) -> None:
        """Kill the guardian and the agent, which have no time to restore anything."""
        assert self._process is not None
        process, self._process = self._process.popen, None
        pids = [process.pid, *children_of(process.pid)]
        for signum in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, signum)
        process.wait(DEADLINE_S)

    def release(self) -> None:
        """Restore every knob as an operator does after the agent was killed."""
        program = (sys.executable, "-m", "controller.cli.main")
        self._node.host.run(*program, "release", "--state-dir", f"{self._home}/state")
