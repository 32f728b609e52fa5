# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One API server for the whole run; a namespace, a node and its cgroups for each test."""

from collections.abc import Iterator
import os
from pathlib import Path
import shutil

import pytest

from controller.host.facts import CgroupLayout
from tests.kube.cable import Cable
from tests.kube.cluster import Cluster
from tests.kube.control_plane import ControlPlane
from tests.kube.kubelet import Kubelet
from tests.kube.kubepods import Kubepods
from tests.kube.own_host import OwnHost
from tests.kube.real_node import RealNode


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


@pytest.fixture(scope="module")
def node(
    cgroup_layout: CgroupLayout, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealNode]:
    """A node with real controllers, kubelet, containerd and runc, for the tests of a module."""
    if cgroup_layout.version == "v2":
        pytest.skip("a node in cgroups of its own needs cgroup v1; v2 is tested in the test kernel")
    home = tmp_path_factory.mktemp("node")
    try:
        with OwnHost(home, f"sweetpoint-test-{os.getpid()}-node") as host, RealNode(host) as node:
            yield node
    finally:
        shutil.rmtree(home, ignore_errors=True)
