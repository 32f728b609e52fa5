# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The chart's agent on a node with real controllers, kubelet, containerd and runc."""

from concurrent.futures import ThreadPoolExecutor
import re

import pytest

from tests.kube.agent_image import AGENT_IMAGE
from tests.kube.client import Json
from tests.kube.cluster import resources
from tests.kube.hogs import (
    hogs,
    is_idle,
    kill_agent,
    wait_for_idle,
    wait_for_squeeze,
    without_levels,
)
from tests.kube.real_node import RealNode
from tests.kube.release import NAMESPACE, Release
from tests.support.waiting import DEADLINE_S

pytestmark = [pytest.mark.kernel, pytest.mark.kube]

# What kubelet logs if it cannot write to a cgroup.
CGROUP_ERROR = re.compile(
    r"^[EF].*(?:QoS cgroup|QOS|ContainerManager|failed to write|invalid argument|runc)", re.M
)


def restarts(node: RealNode) -> dict[str, int]:
    """Return the number of restarts of every container of the node."""
    pods = node.cluster.admin.get("/api/v1/pods")["items"]
    return {
        f"{pod['metadata']['uid']}/{status['name']}": status["restartCount"]
        for pod in pods
        for status in pod["status"].get("containerStatuses", [])
    }


def burstable_weight(node: RealNode) -> tuple[int, int]:
    """Return the cpu.shares of all Burstable pods, and what kubelet has to make of their requests.

    The requests of these pods are multiples of 100m.
    """
    pods = node.cluster.admin.get("/api/v1/pods")["items"]
    count = sum(pod["status"].get("qosClass") == "Burstable" for pod in pods)
    file = node.host.cgroup("cpu", "kubepods/burstable") / "cpu.shares"
    return int(file.read_text()), count * 100 * 1024 // 1000


def wait_for_weight(node: RealNode) -> None:
    def is_right() -> bool:
        found, wanted = burstable_weight(node)
        return found == wanted

    node.wait("the weight of burstable", is_right)


@pytest.mark.parametrize("rounds", [1, pytest.param(50, marks=pytest.mark.soak)])
def test_kubelet_and_containerd_restart_while_the_agent_squeezes(
    release: Release, busy: str, rounds: int
) -> None:
    node = release.node
    wait_for_squeeze(release, busy)
    before, start = restarts(node), len(node.log("kubelet"))
    for number in range(rounds):
        node.stop("kubelet")
        node.start_kubelet()
        if number % 5 in (1, 3):
            node.stop("containerd")
            node.start_containerd()
        # kubelet and the runtime work, and kubelet writes the weights of its levels.
        node.run_pod(busy, f"new-{number}", resources("Burstable"))
        wait_for_weight(node)
        wait_for_idle(release, busy)
        node.delete_pod(busy, f"new-{number}")
    assert CGROUP_ERROR.findall(node.log("kubelet")[start:]) == []
    assert {name: count for name, count in restarts(node).items() if name in before} == before
    release.uninstall()
    assert without_levels(release.knobs()) == without_levels(release.before)
    # kubelet writes the weights of its levels when a pod starts; otherwise once a minute.
    node.run_pod(busy, "last", {})
    wait_for_weight(node)
    node.delete_pod(busy, "last")
    node.wait("the knobs of before", lambda: release.knobs() == release.before)


def test_rollouts_and_the_uninstallation_leave_no_knob_behind(release: Release, busy: str) -> None:
    node, before = release.node, without_levels(release.before)
    wait_for_squeeze(release, busy)
    release.restart()
    wait_for_squeeze(release, busy)
    release.upgrade({"mode": "observe"})
    assert without_levels(release.knobs()) == before
    release.rollback()
    wait_for_idle(release, busy)
    assert "enforce" in release.log()
    # Without kubelet the hook's pod does not run, and the uninstallation waits for it.
    node.stop("kubelet")
    with ThreadPoolExecutor(1) as pool:
        uninstalled = pool.submit(release.uninstall)
        try:
            (hook,) = node.wait("the pod of the hook", release.hooks)
            assert hook["status"]["phase"] == "Pending" and not uninstalled.done()
            assert all(map(is_idle, hogs(node, busy))), "the agent has ended"
        finally:
            node.start_kubelet()
        uninstalled.result(DEADLINE_S)
    assert without_levels(release.knobs()) == before


def test_killed_agents_are_started_again_and_leave_nothing(release: Release, busy: str) -> None:
    wait_for_idle(release, busy)
    (count,) = (each["restartCount"] for each in release.agent()["status"]["containerStatuses"])
    kill_agent(release)

    def is_started_again() -> bool:
        (status,) = release.agent()["status"]["containerStatuses"]
        return bool(status["restartCount"] > count)

    release.node.wait("a new container", is_started_again)
    wait_for_idle(release, busy)
    release.uninstall()
    assert without_levels(release.knobs()) == without_levels(release.before)


@pytest.mark.parametrize("release", [{"uninstall": {"enabled": False}}], indirect=True)
def test_a_release_by_hand_restores_what_a_killed_agent_left(release: Release, busy: str) -> None:
    node = release.node
    wait_for_squeeze(release, busy)
    node.stop("kubelet")  # which would start the agent again
    try:
        kill_agent(release)
        release.uninstall()
        # Otherwise kubelet starts the agent again, which restores what it left.
        ending = "deletionTimestamp"
        node.wait(ending, lambda: all(ending in pod["metadata"] for pod in release.pods()))
        assert all(map(is_idle, hogs(node, busy)))
    finally:
        node.start_kubelet()
    # As the chart's README says.
    paths = {"cgroup": "/sys/fs/cgroup", "state": "/run/sweetpoint"}
    main = {
        **{"name": "main", "image": AGENT_IMAGE, "imagePullPolicy": "Never", "args": ["release"]},
        "securityContext": {"privileged": True},
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in paths.items()],
    }
    volumes = [{"name": name, "hostPath": {"path": path}} for name, path in paths.items()]
    spec = {"hostPID": True, "restartPolicy": "Never", "containers": [main], "volumes": volumes}
    node.make_pod(NAMESPACE, "release", {}, spec=spec)
    node.wait("the end of the release", lambda: has_ended(node.pod(NAMESPACE, "release")))
    log = node.cluster.kubectl(f"--namespace={NAMESPACE}", "logs", "release")
    assert "cpu.idle" in log, log
    assert without_levels(release.knobs()) == without_levels(release.before), log
    node.delete_pod(NAMESPACE, "release")


def has_ended(pod: Json) -> bool:
    """Whether every container of *pod* has started and ended."""
    found = pod["status"].get("containerStatuses", [])
    return bool(found) and all("terminated" in each["state"] for each in found)
