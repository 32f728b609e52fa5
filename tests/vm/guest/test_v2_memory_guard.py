# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The memory guard on cgroup v2, where a limit below the use kills at once."""

import errno
from pathlib import Path
import random
import signal
import subprocess
import sys

import pytest

from controller.core.decision import Failure
from controller.core.model import Knob
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun
from tests.kernel.knobs import action, dump, executor, target_of
from tests.kernel.memory_node import MIB, memory_node
from tests.kernel.without import BLIND
from tests.support.waiting import eventually

pytestmark = [pytest.mark.vm, pytest.mark.soak]

# A limit stays 64 MiB above the use, which is much of the small node of v1.
SCALE = 3


def test_the_service_lives_and_all_limits_go_with_the_agent(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    chance = random.Random(1)
    with memory_node(cgroup_layout, cgroup_root, tmp_path, SCALE) as node:
        before = dump(node.root)
        node.start_job("one", 100)
        write = executor(cgroup_layout, tmp_path / "executor")
        level = target_of(cgroup_layout, node.root / "batch")
        below = action(level, Knob.MEMORY_MAX, "max", str(50 * MIB))
        (outcome,) = write.execute([below], now_ns=0)
        assert (outcome.failure, outcome.errno) == (Failure.REFUSED, errno.EBUSY)
        assert node.jobs["one"].code is None and dump(node.root) == before
        # Without a compiler, which takes long in the guest: the guard needs no probe.
        with AgentRun(node, "--no-guardian", without=BLIND) as agent:
            agent.enforcing()
            node.start_service()
            node.grow_with_limit(chance)

            def are_slowed() -> bool:
                node.keep_jobs(chance)
                jobs = [node.root / "batch" / job for job in node.jobs]
                return any((job / "memory.high").read_text() != "max\n" for job in jobs)

            eventually("jobs that are slowed down", are_slowed)
            assert node.service.code is None
            assert "oom_kill 0" in (node.root / "web" / "memory.events").read_text()
            assert (node.root / "batch" / "memory.high").read_text() == "max\n"
            assert agent.stop(signal.SIGKILL) == -signal.SIGKILL
        assert node.is_limited()
        release = (sys.executable, "-m", "controller.cli.main", "release")
        subprocess.run((*release, "--state-dir", tmp_path / "state"), check=True)
        assert dump(node.root) == before
