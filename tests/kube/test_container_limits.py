# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Best-effort pods with CPU limits on a real node: every container starts, resizes, is squeezed."""

from collections.abc import Iterator, Mapping
import os
from pathlib import Path
import re
import signal
import sys
from typing import Any

import pytest
import yaml

from controller.demo.programs import Process, start
from tests.kube.client import Json
from tests.kube.cluster import resources
from tests.kube.node_programs import NODE, container
from tests.kube.real_node import RealNode
from tests.support.cgroups import children_of
from tests.support.waiting import DEADLINE_S

pytestmark = [pytest.mark.kernel, pytest.mark.kube]

BATCH = {"sweetpoint.dev/qos": "best-effort"}
HOG = "while :; do :; done"
UNTIL = "while [ ! -e /finish ]; do :; done"
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
# What kubelet logs if it or runc cannot write to a cgroup.
CGROUP_ERROR = re.compile(
    r"^[EF].*(?:[Cc]group|QOS|cpu\.\w+|invalid argument|runc|[Rr]esiz).*", re.M
)


class Agent:
    """The agent on the node, outside its pods; *kubernetes* is more for that section.

    On a busy machine a container may get little anyway; below its *floor* it has no quota.
    """

    def __init__(
        self, node: RealNode, home: Path, kubernetes: Json | None = None, floor: str = "40mcpu"
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


@pytest.fixture(scope="module", autouse=True)
def service(node: RealNode) -> Iterator[None]:
    """A service that suffers."""
    name = node.make_namespace("web")
    node.run_pod(name, "web", resources("Burstable"), SERVICE)
    yield
    node.delete_pod(name, "web")


@pytest.fixture
def namespace(node: RealNode) -> Iterator[str]:
    """A new namespace, and no cgroup error of kubelet while it exists."""
    name = node.make_namespace(node.cluster.new_name("test"))
    logged = len(node.log("kubelet"))
    yield name
    assert CGROUP_ERROR.findall(node.log("kubelet")[logged:]) == []
    pods = f"/api/v1/namespaces/{name}/pods"
    node.cluster.admin.delete(pods)
    node.wait("no pods", lambda: not node.cluster.admin.get(pods)["items"])


@pytest.fixture
def agent(node: RealNode, namespace: str, tmp_path: Path) -> Iterator[Agent]:
    """The agent, not started yet."""
    agent = Agent(node, tmp_path)
    yield agent
    agent.stop()


def cpu(limit: str, request: str = "50m") -> Json:
    return {"limits": {"cpu": limit}, "requests": {"cpu": request}}


def statuses(pod: Json) -> dict[str, Json]:
    """Return the status of every container of *pod* by name."""
    kinds = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    return {each["name"]: each for kind in kinds for each in pod["status"].get(kind, [])}


def pod_cgroup(node: RealNode, pod: Json) -> Path:
    levels = {"Burstable": "burstable/", "Guaranteed": "", "BestEffort": "besteffort/"}
    level = levels[pod["status"]["qosClass"]]
    return node.host.cgroup("cpu", f"kubepods/{level}pod{pod['metadata']['uid']}")


def cgroup(node: RealNode, pod: Json, name: str) -> Path:
    """Return the cgroup of the present container *name* of *pod*."""
    pod = node.pod(pod["metadata"]["namespace"], pod["metadata"]["name"])
    identity = statuses(pod).get(name, {}).get("containerID", "")
    assert identity, f"{name} has not started"
    identity = str(identity).removeprefix("containerd://")
    return pod_cgroup(node, pod) / identity


def quota(cgroup: Path) -> float | None:
    """Return the CPUs that the quota of *cgroup* allows; ``None`` for no limit."""
    quota_us = int((cgroup / "cpu.cfs_quota_us").read_text())
    return None if quota_us < 0 else quota_us / int((cgroup / "cpu.cfs_period_us").read_text())


def squeezed(node: RealNode, pod: Json, name: str, below: float = 0.15) -> Path:
    """Wait until the container *name* is squeezed and return its cgroup."""

    def find() -> Path | None:
        path = cgroup(node, pod, name)
        return path if (quota(path) or 9.0) < below else None

    return node.wait(f"a squeeze of {name}", find)


def knobs(cgroup: Path) -> dict[str, str]:
    """Return the knobs of *cgroup* and all cgroups in it."""
    return {
        str(file.relative_to(cgroup)): file.read_text()
        for pattern in ("cpu.cfs_*_us", "cpu.idle", "cpu.shares")
        for file in sorted(cgroup.rglob(pattern))
    }


def resize(node: RealNode, pod: Json, spec: Mapping[str, Any]) -> None:
    meta = pod["metadata"]
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/resize"
    kind = "application/strategic-merge-patch+json"
    node.cluster.admin.call("PATCH", path, {"spec": dict(spec)}, kind)


def wait_for_resize(node: RealNode, pod: Json, name: str, amounts: Mapping[str, Any]) -> None:
    """Wait until kubelet reports *amounts* as the resources of the container *name*."""

    def is_done() -> bool:
        now = node.pod(pod["metadata"]["namespace"], pod["metadata"]["name"])
        kinds = {each["type"] for each in now["status"]["conditions"] if each["status"] == "True"}
        waits = kinds & {"PodResizePending", "PodResizeInProgress"}
        return not waits and bool(statuses(now)[name]["resources"] == amounts)

    node.wait(f"the resize of {name}", is_done)


def finish(node: RealNode, cgroup: Path) -> None:
    """Let the program ``UNTIL`` in *cgroup* end."""

    def find() -> int | None:
        # Before the program there is runc, whose files are not those of the container.
        for pid in map(int, (cgroup / "cgroup.procs").read_text().split()):
            if UNTIL.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return None

    pid = node.wait("the program", find)
    Path(f"/proc/{pid}/root/finish").touch()


def test_every_kind_of_container_starts_in_a_squeezed_pod(
    node: RealNode, namespace: str, agent: Agent
) -> None:
    # With the lowest weight runc may take minutes in a new container, beside the other tests.
    agent.start(yields=False)
    # Init containers in a row: one without a limit, which is squeezed, then one with a limit.
    sidecar = container("sidecar", cpu("200m"), UNTIL) | {"restartPolicy": "Always"}
    spec = {
        "initContainers": [
            container("first", {"requests": {"cpu": "50m"}}, UNTIL),
            container("second", cpu("300m"), UNTIL),
            sidecar,
        ],
        "containers": [
            container("limited", cpu("500m"), HOG),
            container("free", {}, HOG),
            container("small", cpu("10m", "10m"), HOG),
        ],
    }
    pod = node.make_pod(namespace, "batch", {}, labels=BATCH, spec=spec)
    for name in ("first", "second"):
        finish(node, squeezed(node, pod, name))

    def is_running() -> Json | None:
        now = node.pod(namespace, "batch")
        return now if now["status"]["phase"] == "Running" else None

    pod = node.wait("the pod to run", is_running)
    for name in ("limited", "free"):
        squeezed(node, pod, name)
    # Its limit is lower than the floor, so it stays the one in force.
    node.wait("the lower limit", lambda: quota(cgroup(node, pod, "small")) == 0.01)
    # The pod's own quota is that of kubelet: none, because one container has no limit.
    assert quota(pod_cgroup(node, pod)) is None
    ephemeral = container("debug", {}, HOG)
    path = f"/api/v1/namespaces/{namespace}/pods/batch/ephemeralcontainers"
    patch = {"spec": {"ephemeralContainers": [ephemeral]}}
    kind = "application/strategic-merge-patch+json"
    node.cluster.admin.call("PATCH", path, patch, kind)
    squeezed(node, pod, "debug")
    before = squeezed(node, pod, "sidecar")
    finish(node, before)
    node.wait("another container", lambda: cgroup(node, pod, "sidecar") != before)
    squeezed(node, pod, "sidecar")
    counts = {
        name: each["restartCount"] for name, each in statuses(node.pod(namespace, "batch")).items()
    }
    assert {name for name, count in counts.items() if count} == {"sidecar"}
    limited, free, small = (cgroup(node, pod, name) for name in ("limited", "free", "small"))
    agent.stop()
    assert [quota(path) for path in (limited, free, small)] == [0.5, None, 0.01]
    assert (limited / "cpu.cfs_period_us").read_text() == "100000\n"


def test_pods_are_resized_in_place(node: RealNode, namespace: str, agent: Agent) -> None:
    agent.start()
    containers = [
        container("limited", cpu("500m"), HOG),
        container("free", {"requests": {"cpu": "50m"}}, HOG),
    ]
    pod = node.run_pod(namespace, "batch", {}, labels=BATCH, spec={"containers": containers})
    whole = node.run_pod(namespace, "whole", cpu("500m"), HOG, labels=BATCH)
    service = node.run_pod(namespace, "service", cpu("500m"))
    paths = {name: squeezed(node, pod, name) for name in ("limited", "free")}
    paths["main"] = squeezed(node, whole, "main")
    # To a quota below the burst of its profile.
    resize(node, service, {"containers": [{"name": "main", "resources": cpu("100m")}]})
    for limit, request in (("900m", "60m"), ("300m", "40m")):
        amounts = cpu(limit, request)
        new = {"requests": {"cpu": request}}
        both = [{"name": "limited", "resources": amounts}, {"name": "free", "resources": new}]
        resize(node, pod, {"containers": both})
        resize(node, whole, {"containers": [{"name": "main", "resources": amounts}]})
        wait_for_resize(node, pod, "limited", amounts)
        wait_for_resize(node, pod, "free", new)
        wait_for_resize(node, whole, "main", amounts)
        for each, name in ((pod, "limited"), (pod, "free"), (whole, "main")):
            assert squeezed(node, each, name) == paths[name], "the container started again"
    wait_for_resize(node, service, "main", cpu("100m"))
    agent.stop()
    assert {name: quota(path) for name, path in paths.items()} == {
        **{"limited": 0.3, "free": None, "main": 0.3},
    }
    assert [quota(pod_cgroup(node, each)) for each in (pod, whole, service)] == [None, 0.3, 0.1]
    periods = {(path / "cpu.cfs_period_us").read_text() for path in paths.values()}
    assert periods == {"100000\n"}
    shares = [(pod_cgroup(node, each) / "cpu.shares").read_text() for each in (pod, whole)]
    assert shares == ["81\n", "40\n"]  # 80 and 40 thousandths of 1024


def test_a_squeezed_pod_with_resources_of_its_own_is_resized(
    node: RealNode, namespace: str, agent: Agent
) -> None:
    agent.start()
    containers = [container("one", cpu("400m"), HOG), container("two", {}, HOG)]
    spec = {"containers": containers, "resources": cpu("800m", "100m")}
    pod = node.run_pod(namespace, "batch", {}, labels=BATCH, spec=spec)
    paths = [squeezed(node, pod, name) for name in ("one", "two")]
    assert quota(pod_cgroup(node, pod)) == 0.8
    for limit in ("1500m", "500m"):
        resize(node, pod, {"resources": cpu(limit, "100m")})
        expected = int(limit[:-1]) / 1000

        def is_done(expected: float = expected) -> bool:
            return quota(pod_cgroup(node, pod)) == expected

        node.wait("the resize of the pod", is_done)
        assert [squeezed(node, pod, name) for name in ("one", "two")] == paths
    agent.stop()
    assert [quota(path) for path in paths] == [0.4, 0.5]
    assert quota(pod_cgroup(node, pod)) == 0.5


def test_containers_are_as_kubelet_made_them_after_the_agent(
    node: RealNode, namespace: str, agent: Agent
) -> None:
    def guaranteed(limit: str) -> Json:
        return {kind: {"cpu": limit, "memory": "64Mi"} for kind in ("limits", "requests")}

    pods = [
        node.run_pod(namespace, "burstable", cpu("500m"), HOG, labels=BATCH),
        node.run_pod(namespace, "guaranteed", guaranteed("300m"), HOG, labels=BATCH),
    ]
    mains = [cgroup(node, pod, "main") for pod in pods]

    def found() -> list[dict[str, str]]:
        return [knobs(pod_cgroup(node, pod)) for pod in pods]

    def update(amounts: list[Json]) -> None:
        """Have the container runtime write all limits of each container again."""
        for pod, each in zip(pods, amounts, strict=True):
            resize(node, pod, {"containers": [{"name": "main", "resources": each}]})
        for pod, each in zip(pods, amounts, strict=True):
            wait_for_resize(node, pod, "main", each)

    first, second = ([cpu("500m"), guaranteed("300m")], [cpu("600m", "100m"), guaranteed("200m")])
    made = found()
    agent.start()
    for pod in pods:
        squeezed(node, pod, "main")
    shares = [pod_cgroup(node, pod) / "cpu.shares" for pod in pods]
    # A knob of its own: it may be written in another tick than the quota.
    node.wait("the lowest weights", lambda: {file.read_text() for file in shares} == {"2\n"})
    agent.stop()
    assert found() == made
    update(second)
    now = [(quota(path), (path / "cpu.shares").read_text()) for path in mains]
    assert now == [(0.6, "102\n"), (0.2, "204\n")]  # 100 and 200 thousandths of 1024
    agent.start()
    for pod in pods:
        squeezed(node, pod, "main")
    agent.kill()
    assert [quota(path) for path in mains] != [0.6, 0.2]
    agent.release()
    update(first)
    assert found() == made
