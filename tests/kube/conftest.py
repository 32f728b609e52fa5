# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One API server and one real node for the whole run; a namespace and a node for each test.

Beside tests of the running kernel the tests of the real node run in a process of their own, and the
other ones of this directory in another: all mostly wait.
"""

from collections.abc import Iterator
import os
from pathlib import Path
import shutil

import pytest

from controller.host.facts import CgroupLayout
from tests.kube.agent_image import build_agent_image
from tests.kube.cable import Cable
from tests.kube.cluster import Cluster
from tests.kube.control_plane import ControlPlane
from tests.kube.hogs import LAW, PROFILE, start_pods
from tests.kube.kubelet import Kubelet
from tests.kube.kubepods import Kubepods
from tests.kube.own_host import OwnHost
from tests.kube.real_node import RealNode
from tests.kube.release import Release
from tests.support.beside import run_in_child


def pytest_collection_finish(session: pytest.Session) -> None:
    kube = [each for each in session.items if _has(each, "kube") and not _has(each, "vm")]
    others = [each for each in session.items if _has(each, "kernel") and not _has(each, "kube")]
    if others:
        of_node = [each for each in kube if _needs_node(each)]
        run_in_child(session, "node's pytest", of_node)
        run_in_child(session, "API server's pytest", [each for each in kube if each not in of_node])


def _needs_node(item: pytest.Item) -> bool:
    """Whether the test is one of the real node of the run; other nodes are those of a cluster."""
    assert isinstance(item, pytest.Function)
    return "node" in item.fixturenames and "cluster" not in item.fixturenames


def _has(item: pytest.Item, marker: str) -> bool:
    return item.get_closest_marker(marker) is not None


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real API server with RBAC, with the objects that tests create."""
    with ControlPlane(tmp_path_factory.mktemp("cluster")) as plane:
        yield Cluster(plane)


@pytest.fixture
def namespace(cluster: Cluster) -> str:
    """A new namespace for the test, with a service account ``default``."""
    return cluster.make_namespace(cluster.new_name("test"))


@pytest.fixture
def kubepods(cgroup_root: Path, cgroup_layout: CgroupLayout) -> Kubepods:
    """The cgroups of the pods of the test's node; parametrize it for other cgroup drivers."""
    return Kubepods(cgroup_root, cgroup_layout)


@pytest.fixture
def kubelet(cluster: Cluster, kubepods: Kubepods) -> Iterator[Kubelet]:
    """A new node for the test, with pods in real cgroups."""
    with Kubelet(cluster, cluster.new_name("node"), kubepods) as node:
        yield node


@pytest.fixture
def cable(cluster: Cluster) -> Iterator[Cable]:
    """A proxy to the API server that a test can interrupt or stall."""
    with Cable(cluster.plane.port) as cable:
        yield cable


@pytest.fixture(scope="session")
def node(
    cgroup_layout: CgroupLayout, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealNode]:
    """A node with real controllers, kubelet, containerd and runc, for the whole run."""
    if cgroup_layout.version == "v2":
        pytest.skip("a node in cgroups of its own needs cgroup v1; v2 is tested in the test kernel")
    home = tmp_path_factory.mktemp("node")
    try:
        with OwnHost(home, f"sweetpoint-test-{os.getpid()}-node") as host, RealNode(host) as node:
            yield node
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def agent_image(node: RealNode, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The image of the chart's agent, on the node."""
    image = build_agent_image(tmp_path_factory.mktemp("image"))
    node.add_image(image)
    image.unlink()


@pytest.fixture
def busy(node: RealNode) -> Iterator[str]:
    """A new namespace on the node, with a service and two best-effort pods."""
    name = node.make_namespace(node.cluster.new_name("test"))
    start_pods(node, name)
    yield name
    for pod in node.cluster.admin.get(f"/api/v1/namespaces/{name}/pods")["items"]:
        node.delete_pod(name, pod["metadata"]["name"])


@pytest.fixture
def release(
    node: RealNode, agent_image: None, busy: str, request: pytest.FixtureRequest
) -> Iterator[Release]:
    """The installed chart, with further values as its parameter; uninstalled at the end."""
    values = {"profiles": {"default": PROFILE}, "config": {"law": LAW}}
    release = Release(node, {**values, **getattr(request, "param", {})})
    release.install()
    try:
        yield release
    finally:
        if release.installed:
            release.uninstall()
