# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Static pods whose id is a UUID, and pods that claim to be one for the cgroup of another pod."""

from typing import Any

import pytest

from controller.core.model import QosClass
from controller.workloads.pods.pod import Pod
from tests.unit.workloads.pods.fake_node import CONTAINERS, Node, pod


def mirror(number: int, *containers: str, **changes: Any) -> Pod:
    return pod(number, mirror=True, containers=containers, **{"name": "static", **changes})


def test_its_mirror_pod_is_known_by_a_container_of_its_status(node: Node) -> None:
    static = mirror(1, CONTAINERS[0])
    node.start(static)
    node.claim(mirror(1, name="liar"), static, mirror(1, CONTAINERS[1], name="another"))
    (found,) = node.scan()
    assert (found.name, found.qos) == ("shop/static", QosClass.SYSTEM)
    assert node.source.unlisted == 0
    # Its container starts again, and the status is late.
    node.claim(mirror(1, CONTAINERS[1]))
    assert node.scan() == (found._replace(evictable=False),)


def test_before_its_status_it_is_one_that_the_api_server_does_not_list(node: Node) -> None:
    listed = node.run(pod(2))
    node.start(mirror(1))
    node.claim(mirror(1))
    assert node.scan() == listed
    (found,) = {*node.scan(after_s=5)} - {*listed}
    assert found.qos is QosClass.LS
    node.claim(mirror(1, CONTAINERS[0]))
    (after,) = {*node.scan()} - {*listed}
    assert (after.name, after.qos) == ("shop/static", QosClass.SYSTEM)


@pytest.mark.parametrize("containers", [(), CONTAINERS])
def test_no_pod_claims_the_cgroup_of_another(node: Node, containers: tuple[str, ...]) -> None:
    victim = pod(1, "BestEffort")
    before = node.run(victim)
    node.claim(mirror(1, *containers))
    assert node.scan() == before
    node.list()  # deleted, and still running
    node.claim(mirror(1, *containers))
    (after,) = node.scan()
    assert (after.name, after.qos) == (victim.key, QosClass.BE)
