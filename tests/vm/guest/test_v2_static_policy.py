# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A real kubelet with the static CPU manager on cgroup v2: best-effort pods leave its CPUs."""

from collections.abc import Iterator

import pytest

from controller.host.facts import CgroupLayout
from tests.kube.standalone import StandaloneNode, enforcing, standalone_home, standalone_node
from tests.kube.static_policy import static_policy
from tests.support.kube.pod_server import PodServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.vm, pytest.mark.kube, pytest.mark.soak]


@pytest.fixture
def node(
    cgroup_layout: CgroupLayout, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandaloneNode]:
    with (
        PodServer(tmp_path_factory.mktemp("server")) as server,
        standalone_home(tmp_path_factory.mktemp("node")) as home,
        standalone_node(home, "cgroupfs", cgroup_layout, server) as node,
    ):
        yield node


def test_best_effort_pods_leave_the_cpu_of_a_guaranteed_pod(node: StandaloneNode) -> None:
    with static_policy(node) as cpus:
        before, errors = cpus.sets(), node.cgroup_errors()
        with enforcing(node) as agent:
            assert not cpus.exclusive() and cpus.usable() == cpus.every
            node.start_guaranteed("first")
            eventually("fewer CPUs", cpus.isolated)
            assert cpus.container_cpus("first") == cpus.exclusive()
            assert not cpus.container_cpus("batch") & cpus.exclusive()
            node.end("first")
            eventually("all CPUs", lambda: cpus.usable() == cpus.every)
            assert not cpus.exclusive()
            assert cpus.sets() == before
            node.start_guaranteed("second")
            eventually("fewer CPUs", cpus.isolated)
            assert agent.status()["tick"]["failed"] == 0
            assert agent.stop() == 0
        assert cpus.usable() == cpus.every and cpus.sets() == before
        assert not node.records()
        assert node.cgroup_errors() == errors
