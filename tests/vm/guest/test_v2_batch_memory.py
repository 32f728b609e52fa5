# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A best-effort pod that takes more memory than it requested is ended inside its own limit."""

from pathlib import Path
import signal
import subprocess
import sys

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun
from tests.kernel.without import BLIND
from tests.support.kube.pod_server import PodServer
from tests.support.waiting import DEADLINE_S, eventually
from tests.vm.guest.resctrl import move, sleepers
from tests.vm.guest.test_v2_kube_agent import MIB, REQUESTS, Node

pytestmark = [pytest.mark.vm, pytest.mark.soak]

# Takes three times the memory that the pod requested, once it may.
TAKES = "input(); x = bytearray(144 << 20); print(len(x))"


def test_a_pod_over_its_memory_is_ended_and_its_neighbours_are_not(
    cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path
) -> None:
    limits = {"resources": {"requests": REQUESTS, "limits": REQUESTS}}
    with PodServer(tmp_path) as server:
        node = Node(cgroup_root, cgroup_layout, "cgroupfs", server)
        runs_already = node.batch / "memory.max"
        with sleepers(2) as pids, AgentRun(node, "--no-guardian", without=BLIND) as agent:
            move(pids[:1], node.best_effort)
            agent.enforcing()
            eventually("memory.high", lambda: "max" not in (node.batch / "memory.high").read_text())
            late, container = node.start_pod(server, "late", "BestEffort", limits)
            server.send_event("ADDED", server.pods[-1])
            limit = late / "memory.max"
            eventually("the limit of the pod", lambda: limit.read_text() == f"{48 * MIB}\n")
            move(pids[1:], container)
            program = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", TAKES],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            move([program.pid], container)
            output, _ = program.communicate(b"\n", timeout=DEADLINE_S)
            assert (program.returncode, output) == (-signal.SIGKILL, b"")
            events = dict(
                line.split() for line in (late / "memory.events").read_text().splitlines()
            )
            assert int(events["oom_kill"]) == 1
            # The neighbour, which ran before the agent did and uses little.
            assert (node.best_effort / "cgroup.procs").read_text() == f"{pids[0]}\n"
            assert agent.stop() == 0
        assert limit.read_text() == "max\n" == runs_already.read_text()
