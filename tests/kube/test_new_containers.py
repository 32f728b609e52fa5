# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Containers that the container runtime tells the chart's agent of before they run."""

import contextlib
import os
from pathlib import Path
import signal

import pytest

from tests.kube.client import Json
from tests.kube.cluster import resources
from tests.kube.hogs import wait_for_squeeze
from tests.kube.node_agent import SERVICE
from tests.kube.node_programs import container
from tests.kube.real_node import RealNode
from tests.kube.release import Release
from tests.kube.told import TOLD, answered, answers, doorbell, status
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.kube]

# The first thing that the container does: it prints whether its pod is idle, and its quota.
FIRST = (
    "cd /host$(sed -n 's/^.*:cpu:/\\/cpu/p' /proc/self/cgroup)/..; "
    "cat cpu.idle cpu.cfs_quota_us; sleep 1000000"
)
REQUESTS = {"requests": {"cpu": "10m"}}
SPEC = {
    "volumes": [{"name": "host", "hostPath": {"path": "/sys/fs/cgroup"}}],
    "containers": [
        {
            **container("main", {}, FIRST),
            "volumeMounts": [{"name": "host", "mountPath": "/host"}],
        }
    ],
}


def seen_by(node: RealNode, namespace: str, name: str) -> str:
    """Return what the container of a pod printed."""
    return node.wait(
        f"the log of {name}",
        lambda: node.cluster.kubectl(f"--namespace={namespace}", "logs", name).strip(),
    )


@pytest.mark.parametrize("release", [TOLD], indirect=True)
def test_a_container_has_its_knobs_before_its_first_instruction(
    release: Release, busy: str
) -> None:
    node = release.node
    node.run_pod(busy, "crowd", resources("Burstable"), SERVICE)
    node.wait("the plugin to be known", lambda: not doorbell(release)["problem"])
    wait_for_squeeze(release, busy)
    tried = 0

    def try_pod() -> bool:
        nonlocal tried
        # An agent that stands may leave a page without an answer.
        before = node.wait("the state of the plugin", lambda: doorbell(release))
        name, tried = f"told-{tried}", tried + 1
        node.run_pod(busy, name, {}, spec=SPEC)
        seen = seen_by(node, busy, name)
        # Its sandbox and its container; the page has the state of the last tick.
        after = node.wait("two answers more", lambda: answered(release, answers(before) + 2))
        if after["late"] != before["late"]:
            return False  # on a busy machine an answer may come before the tick is over
        idle, quota_us = map(int, seen.split())
        assert idle == 1
        # On a busy machine the hogs get so little that the squeeze ends for a while.
        return quota_us > 0

    eventually("a pod in a squeeze for which all ticks were in time", try_pod)


def kill_container(agent: Json, node: RealNode) -> None:
    """Kill the container of the pod *agent*, and leave its sandbox, which has the address."""
    cgroup = node.host.cgroup("cpu", f"kubepods/burstable/pod{agent['metadata']['uid']}")
    for file in cgroup.glob("*/cgroup.procs"):
        for pid in map(int, file.read_text().split()):
            # The others end as soon as the first one has ended.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{pid}/comm").read_text() != "pause\n":
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("release", [TOLD], indirect=True)
def test_an_agent_that_starts_while_the_api_server_is_away_knows_the_pods(
    release: Release, busy: str
) -> None:
    node, agent = release.node, release.agent()
    # By its cgroup alone it would be a service.
    node.run_pod(busy, "lowered", REQUESTS, labels={"sweetpoint.dev/qos": "best-effort"})

    def knows_it() -> bool:
        found = status(node, agent["status"]["podIP"])
        # The page has little before the first tick.
        every = found.get("workloads", ())
        ours = [each["qos"] for each in every if each["name"].startswith(f"{busy}/lowered")]
        return set(ours) == {"best-effort"} and not found["cluster"]["synced"]

    plane = node.cluster.plane
    plane.stop_server()
    try:
        kill_container(agent, node)
        node.wait("the pod to be known", knows_it)
    finally:
        plane.start_server()
