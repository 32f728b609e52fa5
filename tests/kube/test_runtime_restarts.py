# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's plugin and new pods, while containerd restarts and while the agent stands or ends."""

import contextlib
from datetime import UTC, datetime
import os
import signal
import time

import pytest

from tests.kube.hogs import LAW, agent_pids, kill_agent, kill_child, wait_for_idle
from tests.kube.real_node import RealNode
from tests.kube.release import NAMESPACE, Release
from tests.kube.told import answered, answers, doorbell, is_connected

pytestmark = [pytest.mark.kernel, pytest.mark.kube]

TOLD = {"nri": {"mount": True}, "config": {"law": LAW}}
PODS, RESTARTS, MOST_S = 20, 20, 5.0
AGENT_S = 10.0
REGISTERED = "the runtime tells new containers before they run"
LATER_PODS = 5


def restarts(node: RealNode) -> dict[str, int]:
    """Return the number of restarts of every container of the pods that run, by pod and name."""
    return {
        f"{pod['metadata']['name']}/{status['name']}": status["restartCount"]
        for pod in node.cluster.admin.get("/api/v1/pods")["items"]
        for status in pod["status"].get("containerStatuses", [])
        if pod["status"]["phase"] == "Running"
    }


def start_pods(node: RealNode, namespace: str, prefix: str, count: int) -> list[float]:
    """Start pods one after the other; return how long each took, in seconds."""
    took_s = []
    for number in range(count):
        began_s = time.monotonic()
        node.run_pod(namespace, f"{prefix}-{number}", {})
        took_s.append(time.monotonic() - began_s)
    return took_s


def told_of_another(release: Release, namespace: str) -> None:
    """Wait until the runtime has told the agent of a new pod and of its container."""
    node = release.node
    before = node.wait("the state of the plugin", lambda: doorbell(release))
    node.run_pod(namespace, "another", {})
    node.wait("two answers more", lambda: answered(release, answers(before) + 2))
    node.delete_pod(namespace, "another")


def connected_after(release: Release, moment: datetime) -> float | None:
    """Return how long after *moment* the runtime first knew an agent, in s, by the agents' logs."""
    logs = release.node.host.file("/var/log/pods").glob(f"{NAMESPACE}_*/agent/*.log")
    lines = (line for log in logs for line in log.read_text().splitlines() if REGISTERED in line)
    times = (datetime.fromisoformat(line.split()[0]) for line in lines)
    return min(((each - moment).total_seconds() for each in times if each > moment), default=None)


def restart_containerd(release: Release, namespace: str, rounds: int) -> list[float]:
    """Restart containerd beside ``PODS`` pods; return how long the agent was not connected."""
    node, took_s = release.node, []
    node.wait("the plugin to be known", lambda: is_connected(release))
    start_pods(node, namespace, "beside", PODS)
    before = restarts(node)
    for number in range(rounds):
        # Without the first signal the socket stays, and nobody listens at it.
        node.stop("containerd", (signal.SIGTERM, signal.SIGKILL)[number % 2])
        node.wait("a lost connection", lambda: not is_connected(release))
        node.start_containerd()
        began_s = time.monotonic()
        node.wait("the plugin to be known again", lambda: is_connected(release))
        took_s.append(time.monotonic() - began_s)
        told_of_another(release, namespace)
    assert restarts(node) == before
    print(f"\n{rounds} restarts: connected again within {max(took_s):.1f} s, {took_s}")
    return took_s


@pytest.mark.soak  # two restarts next to 20 pods take six minutes on a busy machine
@pytest.mark.parametrize("release", [TOLD], indirect=True)
def test_after_each_restart_of_containerd_the_agent_is_told_again(
    release: Release, busy: str
) -> None:
    restart_containerd(release, busy, RESTARTS)


@pytest.mark.timed
@pytest.mark.parametrize("release", [TOLD], indirect=True)
def test_the_agent_is_connected_soon_after_a_restart(release: Release, busy: str) -> None:
    assert max(restart_containerd(release, busy, 4)) <= MOST_S


@pytest.mark.parametrize("release", [TOLD], indirect=True)
def test_pods_start_while_the_agent_stands(release: Release, busy: str) -> None:
    node = release.node
    node.wait("the plugin to be known", lambda: is_connected(release))
    usual_s = start_pods(node, busy, "usual", LATER_PODS)
    pids = agent_pids(release)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        took_s = start_pods(node, busy, "stood", LATER_PODS)
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    print(f"\nbeside an agent that stands: {took_s} s, before: {usual_s} s")
    node.wait("the plugin to be known again", lambda: is_connected(release))
    told_of_another(release, busy)


@pytest.mark.soak
@pytest.mark.parametrize("release", [TOLD], indirect=True)
def test_pods_start_after_the_agent_was_killed(release: Release, busy: str) -> None:
    node = release.node
    node.wait("the plugin to be known", lambda: is_connected(release))
    usual_s = start_pods(node, busy, "usual", LATER_PODS)
    kill_agent(release)
    killed = datetime.now(UTC)
    took_s = start_pods(node, busy, "later", LATER_PODS)
    node.wait("the next plugin to be known", lambda: is_connected(release))
    again_s = connected_after(release, killed)
    print(f"\nafter a kill: {took_s} s, before: {usual_s} s; connected within {again_s} s")
    told_of_another(release, busy)
    wait_for_idle(release, busy)


@pytest.mark.timed
@pytest.mark.parametrize("release", [TOLD], indirect=True)
def test_the_next_agent_of_the_guardian_is_connected_soon(release: Release, busy: str) -> None:
    node = release.node
    node.wait("the plugin to be known", lambda: is_connected(release))
    kill_child(release)
    killed = datetime.now(UTC)
    took_s = node.wait("the next plugin", lambda: connected_after(release, killed))
    node.wait("the next agent", lambda: is_connected(release))
    controls_s = (datetime.now(UTC) - killed).total_seconds()
    print(f"\nagent killed: connected after {took_s:.1f} s, all in {controls_s:.1f} s")
    assert took_s <= AGENT_S
