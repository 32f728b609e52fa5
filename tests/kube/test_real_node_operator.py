# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""An operator of a real node: commands of the documents, and an eviction."""

import os
from pathlib import Path
import re
import shlex
import subprocess
import sys

import pytest

from tests.kernel.transcript import steps
from tests.kube.client import Json
from tests.kube.hogs import (
    HOG,
    besteffort,
    hogs,
    is_idle,
    is_squeezed,
    wait_for_squeeze,
    without_levels,
)
from tests.kube.node_programs import NODE, container
from tests.kube.real_node import RealNode
from tests.kube.release import NAMESPACE, Release
from tests.support.waiting import DEADLINE_S

pytestmark = [pytest.mark.kernel, pytest.mark.kube]


def operate(node: RealNode, command: str) -> str:
    """Return what a command of the documents prints, with the rights of an administrator."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        shlex.split(command),
        env={**os.environ, "PATH": path, "KUBECONFIG": str(node.admin_kubeconfig)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_an_operator_watches_pauses_and_asks(release: Release, busy: str) -> None:
    node, agent = release.node, release.agent()["metadata"]["name"]
    inside = f"kubectl -n {NAMESPACE} exec {agent} -- /opt/sweetpoint/bin/sweetpoint"
    wait_for_squeeze(release, busy)
    top, _, pause, resume = (
        step.command.replace("NODE", NODE)
        for step in steps("docs/OPERATIONS.md")
        if re.search("NODE|NAMESPACE", step.command)
    )
    assert top == f"sweetpoint top --node {NODE}"
    # It gives an agent that stands five seconds for an answer.
    shown = node.wait("the page", lambda: operate(node, f"{top} --once"))
    assert shown.startswith("enforce | ")
    assert f"service {busy}/web@default runq_p99 " in shown
    assert re.search(rf"^workload {busy}/one .*uses \d", shown, re.MULTILINE)
    operate(node, f"{inside} pause --workload {busy}/one")
    one, two = hogs(node, busy)
    node.wait("the end of its limits", lambda: not is_idle(one) and not is_squeezed(one))
    assert is_idle(two)
    operate(node, f"{inside} resume")
    wait_for_squeeze(release, busy)
    operate(node, pause)
    node.wait(
        "the pause", lambda: without_levels(release.knobs()) == without_levels(release.before)
    )
    paused = "! paused: everything"
    node.wait("the pause on the page", lambda: paused in operate(node, f"{top} --once"))
    operate(node, resume)
    wait_for_squeeze(release, busy)
    explain = f"{inside} explain {busy}/one"
    cause = f"because of {busy}/web@default on cache"
    node.wait("the history", lambda: tells(operate(node, explain), cause))
    assert "An agent ran for" in operate(node, f"{inside} advise")


def tells(text: str, cause: str) -> bool:
    """Whether *cause*, and a pause that has ended, are in the *text* of explain.

    The history has one moment a second: two pauses with less between them are one, and a squeeze
    may be between two moments, or be that of the other pod so far.
    """
    assert text.count("pause: begins") == text.count("pause: ends") > 0, text
    assert cause in text, text
    return True


def named(events: list[Json], uid: str) -> list[Json]:
    """Return those of *events* that are about the object *uid*."""
    return [each for each in events if each["involvedObject"]["uid"] == uid]


def has_no_place(pod: Json) -> bool:
    """Whether the scheduler has found no node for *pod*."""
    conditions = pod["status"].get("conditions", [])
    return any((each["type"], each["status"]) == ("PodScheduled", "False") for each in conditions)


@pytest.mark.usefixtures("agent_image")
def test_an_eviction_ends_with_kubelet_and_a_new_pod_waits(node: RealNode, busy: str) -> None:
    admin = node.cluster.admin
    for hog in ("one", "two"):
        node.delete_pod(busy, hog)  # the deployment's pod is the only one to evict
    name, labels = "night", {"app": "night"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container("main", {}, HOG)]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    deployments = f"/apis/apps/v1/namespaces/{busy}/deployments"
    admin.create(deployments, {"metadata": {"name": name}, "spec": spec})

    def pods() -> list[Json]:
        path = f"/api/v1/namespaces/{busy}/pods?labelSelector=app%3Dnight"
        return list(admin.get(path)["items"])

    (victim,) = node.wait("the deployment's pod", pods)
    # For want of memory: how much of a wait the pod causes depends on other work of the machine.
    eviction = {"enabled": True, "mark": "NoSchedule", "cool_down": "10s", "per_hour": 10}
    config = {"kubernetes": {"eviction": eviction}, "memory": {"margin": "1024GiB"}}
    release = Release(node, {"config": config})
    release.install()
    try:
        uid = victim["metadata"]["uid"]
        node.wait("the eviction", lambda: uid not in [pod["metadata"]["uid"] for pod in pods()])
        cgroup = besteffort(node, victim)
        node.wait("kubelet to remove its cgroup", lambda: not cgroup.exists())
        node.wait("a new pod without a node", lambda: [*map(has_no_place, pods())] == [True])
        path = f"/api/v1/namespaces/{busy}/events?fieldSelector=reason%3DEvictedForMemory"
        node.wait("an Event of the pod", lambda: named(admin.get(path)["items"], uid))
    finally:
        release.uninstall()
    taints = admin.get(f"/api/v1/nodes/{NODE}")["spec"].get("taints", [])
    assert not any(taint["key"].startswith("sweetpoint.dev/") for taint in taints)
    node.wait(
        "the node to be free again",
        lambda: [pod["status"]["phase"] for pod in pods()] == ["Running"],
    )
    admin.delete(f"{deployments}/{name}")
    node.wait("the end of the deployment's pod", lambda: not pods())
