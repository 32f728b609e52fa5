# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The chart's agent on a node with real controllers, kubelet, containerd and runc."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
import os
from pathlib import Path
import re
import shlex
import signal
import subprocess
import sys

import pytest

from tests.kernel.transcript import steps
from tests.kube.agent_image import AGENT_IMAGE, build_agent_image
from tests.kube.client import Json
from tests.kube.cluster import resources
from tests.kube.node_programs import NODE, container
from tests.kube.real_node import RealNode
from tests.kube.release import NAMESPACE, Release

pytestmark = [pytest.mark.kernel, pytest.mark.kube]

HOG = "while :; do :; done"
# Runs a little, often: it waits for a CPU beside other work.
SERVICE = "while :; do sleep 0.005; i=0; while [ $i -lt 2000 ]; do i=$((i + 1)); done; done"
# Squeezes best-effort work to its floor and releases it, again and again.
PROFILE = {
    "indicators": {
        "runq_p99": {
            **{"sweet_point": "20us", "resolution": "10us", "window": "1s", "filter": "0s"},
            "gains": {"kp": 1, "ti": "200ms"},
        }
    },
    # Other work of the machine may cause most of the wait.
    "be_share_min": "0%",
    "channels": ["cpu"],
    "knobs": {"cpu.quota": {"floor": "100mcpu", "squeeze": "10/s"}},
}
# What kubelet logs if it cannot write to a cgroup.
CGROUP_ERROR = re.compile(
    r"^[EF].*(?:QoS cgroup|QOS|ContainerManager|failed to write|invalid argument|runc)", re.M
)


@pytest.fixture(scope="module", autouse=True)
def agent_image(node: RealNode, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The image of the chart's agent, on the node."""
    image = build_agent_image(tmp_path_factory.mktemp("image"))
    node.add_image(image)
    image.unlink()


@pytest.fixture
def namespace(node: RealNode) -> Iterator[str]:
    """A new namespace with a service and two best-effort pods."""
    name = node.make_namespace(node.cluster.new_name("test"))
    node.run_pod(name, "web", resources("Burstable"), SERVICE)
    for hog in ("one", "two"):
        node.run_pod(name, hog, {}, HOG)
    yield name
    for pod in node.cluster.admin.get(f"/api/v1/namespaces/{name}/pods")["items"]:
        node.delete_pod(name, pod["metadata"]["name"])


@pytest.fixture
def release(node: RealNode, namespace: str, request: pytest.FixtureRequest) -> Iterator[Release]:
    """The installed chart, with further values as its parameter; uninstalled at the end."""
    release = Release(node, {"profiles": {"default": PROFILE}, **getattr(request, "param", {})})
    release.install()
    try:
        yield release
    finally:
        if release.installed:
            release.uninstall()


def besteffort(node: RealNode, pod: Json) -> Path:
    return node.host.cgroup("cpu", f"kubepods/besteffort/pod{pod['metadata']['uid']}")


def is_idle(cgroup: Path) -> bool:
    return (cgroup / "cpu.idle").read_text() == "1\n"


def is_squeezed(cgroup: Path) -> bool:
    return int((cgroup / "cpu.cfs_quota_us").read_text()) > 0


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

    node.wait("the weight of burstable", is_right, within_s=70)


def hogs(node: RealNode, namespace: str) -> list[Path]:
    """Return the cgroups of the best-effort pods."""
    return [besteffort(node, node.pod(namespace, name)) for name in ("one", "two")]


def wait_for_idle(release: Release, namespace: str) -> None:
    """Wait until the best-effort pods are idle."""
    cgroups = hogs(release.node, namespace)
    release.node.wait("sched-idle", lambda: all(map(is_idle, cgroups)))


def wait_for_squeeze(release: Release, namespace: str) -> None:
    """Wait until the best-effort pods are idle, and one of them squeezed."""
    wait_for_idle(release, namespace)
    cgroups = hogs(release.node, namespace)
    release.node.wait("a squeeze", lambda: any(map(is_squeezed, cgroups)))


def kill_agent(release: Release) -> None:
    """Kill every process of the agent's pod."""
    uid = release.agent()["metadata"]["uid"]
    cgroup = release.node.host.cgroup("cpu", f"kubepods/burstable/pod{uid}")
    for file in cgroup.glob("*/cgroup.procs"):
        for pid in map(int, file.read_text().split()):
            os.kill(pid, signal.SIGKILL)


def without_levels(knobs: dict[str, str]) -> dict[str, str]:
    # The weights of these cgroups follow the number of pods, up to a minute later.
    return {name: text for name, text in knobs.items() if name.count("/") > 1}


@pytest.mark.parametrize("rounds", [1, pytest.param(50, marks=pytest.mark.soak)])
def test_kubelet_and_containerd_restart_while_the_agent_squeezes(
    release: Release, namespace: str, rounds: int
) -> None:
    node = release.node
    wait_for_squeeze(release, namespace)
    before, start = restarts(node), len(node.log("kubelet"))
    for number in range(rounds):
        node.stop("kubelet")
        node.start_kubelet()
        if number % 5 in (1, 3):
            node.stop("containerd")
            node.start_containerd()
        # kubelet and the runtime work, and kubelet writes the weights of its levels.
        node.run_pod(namespace, f"new-{number}", resources("Burstable"))
        wait_for_weight(node)
        wait_for_idle(release, namespace)
        node.delete_pod(namespace, f"new-{number}")
    assert CGROUP_ERROR.findall(node.log("kubelet")[start:]) == []
    assert {name: count for name, count in restarts(node).items() if name in before} == before
    release.uninstall()
    assert without_levels(release.knobs()) == without_levels(release.before)
    wait_for_weight(node)
    assert release.knobs() == release.before


def operate(node: RealNode, command: str) -> str:
    """Return what a command of the documents prints, with the rights of an administrator."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        shlex.split(command),
        env={**os.environ, "PATH": path, "KUBECONFIG": str(node.admin_kubeconfig)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_an_operator_watches_pauses_and_asks(release: Release, namespace: str) -> None:
    node, agent = release.node, release.agent()["metadata"]["name"]
    inside = f"kubectl -n {NAMESPACE} exec {agent} -- /opt/sweetpoint/bin/sweetpoint"
    wait_for_squeeze(release, namespace)
    top, _, pause, resume = (
        step.command.replace("NODE", NODE)
        for step in steps("docs/OPERATIONS.md")
        if re.search("NODE|NAMESPACE", step.command)
    )
    assert top == f"sweetpoint top --node {NODE}"
    shown = operate(node, f"{top} --once")
    assert shown.startswith("enforce | ")
    assert f"service {namespace}/web@default runq_p99 " in shown
    assert re.search(rf"^workload {namespace}/one .*uses \d", shown, re.MULTILINE)
    operate(node, f"{inside} pause --workload {namespace}/one")
    one, two = hogs(node, namespace)
    node.wait("the end of its limits", lambda: not is_idle(one) and not is_squeezed(one))
    assert is_idle(two)
    operate(node, f"{inside} resume")
    wait_for_squeeze(release, namespace)
    operate(node, pause)
    node.wait(
        "the pause", lambda: without_levels(release.knobs()) == without_levels(release.before)
    )
    assert "! paused: everything" in operate(node, f"{top} --once")
    operate(node, resume)
    wait_for_squeeze(release, namespace)
    explain = f"{inside} explain {namespace}/one"
    text = node.wait("the history", lambda: has_paused(operate(node, explain)))
    assert f"because of {namespace}/web@default on cpu" in text
    assert "An agent ran for" in operate(node, f"{inside} advise")


def has_paused(text: str) -> str:
    """Return *text* of explain; a pause is in it and has ended.

    The history has one moment a second: two pauses with less between them are one.
    """
    assert text.count("pause: begins") == text.count("pause: ends") > 0, text
    return text


def test_rollouts_and_the_uninstallation_leave_no_knob_behind(
    release: Release, namespace: str
) -> None:
    node, before = release.node, without_levels(release.before)
    wait_for_squeeze(release, namespace)
    release.restart()
    wait_for_squeeze(release, namespace)
    release.upgrade({"mode": "observe"})
    assert without_levels(release.knobs()) == before
    release.rollback()
    wait_for_idle(release, namespace)
    assert "enforce" in release.log()
    # Without kubelet the hook waits for the agent's pod, which nothing ends.
    node.stop("kubelet")
    with ThreadPoolExecutor(1) as pool:
        uninstalled = pool.submit(release.uninstall)
        with pytest.raises(TimeoutError):
            uninstalled.result(timeout=5)
        node.start_kubelet()
        uninstalled.result(timeout=90)
    assert without_levels(release.knobs()) == before


def test_killed_agents_are_started_again_and_leave_nothing(
    release: Release, namespace: str
) -> None:
    node = release.node
    for _ in range(2):
        wait_for_idle(release, namespace)
        (count,) = (each["restartCount"] for each in release.agent()["status"]["containerStatuses"])
        kill_agent(release)

        def is_started_again(count: int = count) -> bool:
            (status,) = release.agent()["status"]["containerStatuses"]
            return bool(status["restartCount"] > count)

        node.wait("a new container", is_started_again)
    release.uninstall()
    assert without_levels(release.knobs()) == without_levels(release.before)


@pytest.mark.parametrize("release", [{"uninstall": {"enabled": False}}], indirect=True)
def test_a_release_by_hand_restores_what_a_killed_agent_left(
    release: Release, namespace: str
) -> None:
    node = release.node
    wait_for_squeeze(release, namespace)
    node.stop("kubelet")  # which would start the agent again
    kill_agent(release)
    release.uninstall()
    assert all(map(is_idle, hogs(node, namespace)))
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

    def end() -> Json | None:
        (status,) = node.pod(NAMESPACE, "release")["status"].get("containerStatuses") or ({},)
        return status.get("state", {}).get("terminated")

    node.wait("the end of the release", end)
    log = node.cluster.kubectl(f"--namespace={NAMESPACE}", "logs", "release")
    assert "cpu.idle" in log, log
    assert without_levels(release.knobs()) == without_levels(release.before), log
    node.delete_pod(NAMESPACE, "release")


def test_an_eviction_ends_with_kubelet_and_a_new_pod_waits(node: RealNode, namespace: str) -> None:
    admin = node.cluster.admin
    for hog in ("one", "two"):
        node.delete_pod(namespace, hog)  # the deployment's pod is the only one to evict
    name, labels = "night", {"app": "night"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container("main", {}, HOG)]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    admin.create(deployments, {"metadata": {"name": name}, "spec": spec})

    def pods() -> list[Json]:
        path = f"/api/v1/namespaces/{namespace}/pods?labelSelector=app%3Dnight"
        return list(admin.get(path)["items"])

    (victim,) = node.wait("the deployment's pod", pods)
    evict = {"evict": {"enabled": True, "after": "3s"}}
    eviction = {"enabled": True, "mark": "NoSchedule", "cool_down": "10s", "per_hour": 10}
    # This service suffers from itself too, so a trial would end the squeeze before the eviction.
    law = {"verify_squeeze": False}
    release = Release(
        node,
        {
            "profiles": {"default": {**PROFILE, **evict}},
            "config": {"kubernetes": {"eviction": eviction}, "law": law},
        },
    )
    release.install()
    try:
        uid = victim["metadata"]["uid"]
        node.wait("the eviction", lambda: uid not in [pod["metadata"]["uid"] for pod in pods()])
        cgroup = besteffort(node, victim)
        node.wait("kubelet to remove its cgroup", lambda: not cgroup.exists())
        (waiting,) = node.wait("the new pod", pods)
        assert waiting["status"]["phase"] == "Pending" and "nodeName" not in waiting["spec"]
    finally:
        release.uninstall()
    taints = admin.get(f"/api/v1/nodes/{NODE}")["spec"].get("taints", [])
    assert not any(taint["key"].startswith("sweetpoint.dev/") for taint in taints)
    node.wait("the node to be free again", lambda: pods()[0]["status"]["phase"] == "Running")
    admin.delete(f"{deployments}/{name}")
    node.wait("the end of the deployment's pod", lambda: not pods())
