# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent beside another NRI plugin, which gives the same containers a weight and a quota."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.kube.client import Json
from tests.kube.cluster import resources
from tests.kube.limits import (
    cgroup,
    cpu,
    quota,
    resize,
    squeezed,
    statuses,
    wait_for_resize,
)
from tests.kube.node_agent import BATCH, HOG, SERVICE, Agent
from tests.kube.real_node import RealNode
from tests.kube.second_plugin import Limits, second_plugin

pytestmark = [pytest.mark.kernel, pytest.mark.kube]

# By the label of a pod: of 0.03 CPUs, less than the floor of the agent, and of 0.8.
LIMITS = {"low": Limits(77, 3_000), "high": Limits(77, 80_000)}
EACH = 5
SLEEP = "sleep 1000000"


@pytest.fixture
def namespace(node: RealNode) -> Iterator[str]:
    """A new namespace on the node, with a service that suffers."""
    name = node.make_namespace(node.cluster.new_name("test"))
    node.run_pod(name, "web", resources("Burstable"), SERVICE)
    yield name
    pods = f"/api/v1/namespaces/{name}/pods"
    node.cluster.admin.delete(pods)
    node.wait("no pods", lambda: not node.cluster.admin.get(pods)["items"])


@pytest.fixture
def agent(node: RealNode, namespace: str, tmp_path: Path) -> Iterator[Agent]:
    """The agent, of which the runtime tells new containers; it squeezes."""
    agent = Agent(node, tmp_path, nri={"enabled": "on", "answer_within": "1s"})
    try:
        # With the lowest weight runc may take minutes in a new container, beside the other tests.
        agent.start(yields=False)
        agent.wait_for_plugin()
        first = node.run_pod(namespace, "first", cpu("500m"), HOG, labels=BATCH)
        squeezed(node, first, "main")
        yield agent
    finally:
        agent.stop()


def runs(node: RealNode, pod: Json) -> bool:
    """Whether the container of *pod* runs."""
    now = node.pod(pod["metadata"]["namespace"], pod["metadata"]["name"])
    return "running" in statuses(now).get("main", {}).get("state", {})


def shares(path: Path) -> int:
    """Return the weight of a cgroup."""
    return int((path / "cpu.shares").read_text())


@pytest.mark.parametrize("index", [pytest.param("10", marks=pytest.mark.soak), "95"])
def test_pods_of_two_plugins_start_with_the_lower_quota(
    node: RealNode, namespace: str, agent: Agent, index: str
) -> None:
    kinds: dict[str, Json] = {"plain": {}, "sized": cpu("900m")}
    with second_plugin(node, index, LIMITS) as plugin:
        pods = {
            (kind, which, number): node.make_pod(
                namespace,
                f"{kind}-{which}-{number}",
                amounts,
                # One of each kind has a use for more than it gets.
                SLEEP if number else HOG,
                labels=BATCH | {"plugin": which},
            )
            for kind, amounts in kinds.items()
            for which in LIMITS
            for number in range(EACH)
        }
        for pod in pods.values():
            node.wait(f"{pod['metadata']['name']} to run", partial(runs, node, pod))
        assert plugin.created.keys() >= {pod["metadata"]["name"] for pod in pods.values()}
    mains = {key: cgroup(node, pod, "main") for key, pod in pods.items()}
    wholes = {key: path.parent for key, path in mains.items()}

    for kind in kinds:
        assert squeezed(node, pods[kind, "high", 0], "main") == mains[kind, "high", 0]
    # What would be no limit of the agent's does not replace that of the plugin.
    assert max(quota(path) or 9.0 for key, path in mains.items() if key[1] == "low") == 0.03
    assert {quota(path) for key, path in wholes.items() if key[0] == "plain"} == {None}
    assert {shares(path) for path in mains.values()} == {77}
    agent.stop()
    assert {key: quota(path) for key, path in mains.items()} == {
        key: 0.03 if key[1] == "low" else 0.8 for key in mains
    }
    assert {key: quota(path) for key, path in wholes.items()} == {
        key: None if key[0] == "plain" else 0.9 for key in wholes
    }
    assert {shares(path) for path in mains.values()} == {77}
    pod = pods["sized", "high", 0]
    resize(node, pod, {"containers": [{"name": "main", "resources": cpu("700m")}]})
    wait_for_resize(node, pod, "main", cpu("700m"))
    # The other plugin does not answer for updates: kubelet's values are in its place.
    main = mains["sized", "high", 0]
    assert (quota(main), shares(main)) == (0.7, 51)  # 50 thousandths of 1024
