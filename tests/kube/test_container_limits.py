# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Best-effort pods with CPU limits on a real node: every container starts, resizes, is squeezed."""

from collections.abc import Iterator
from pathlib import Path
import re

import pytest

from tests.kube.client import Json
from tests.kube.cluster import resources
from tests.kube.limits import (
    cgroup,
    cpu,
    knobs,
    pod_cgroup,
    quota,
    resize,
    squeezed,
    statuses,
    wait_for_resize,
)
from tests.kube.node_agent import BATCH, HOG, SERVICE, Agent
from tests.kube.node_programs import container
from tests.kube.real_node import RealNode

pytestmark = [pytest.mark.kernel, pytest.mark.kube]

UNTIL = "while [ ! -e /finish ]; do :; done"
# What kubelet logs if it or runc cannot write to a cgroup.
CGROUP_ERROR = re.compile(
    r"^[EF].*(?:[Cc]group|QOS|cpu\.\w+|invalid argument|runc|[Rr]esiz).*", re.M
)


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
