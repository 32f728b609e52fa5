# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which cgroups are those of this node: other nodes, copies, several roots, configured roots."""

from dataclasses import replace
from pathlib import Path

from tests.unit.workloads.pods.fake_node import OWN, Node, pod, uid


def test_pods_of_other_nodes_are_left_alone(node: Node) -> None:
    inner = "docker/0123/kubelet/kubepods"
    node.start(pod(1))
    node.start(pod(2), pod(3), root=inner)
    assert node.scan(after_s=10) == ()  # the root of this node is not known yet
    assert node.source.foreign_roots == ("/kubepods", f"/{inner}")
    node.list(pod(2))
    assert [each.name for each in node.scan()] == ["shop/p2"]
    assert [each.name for each in node.scan(after_s=10)] == ["shop/p2", f"pod:{uid(3)}"]
    assert list(node.source.foreign_roots) == ["/kubepods"]
    node.list()
    assert len(node.scan()) == 2  # the last choice holds


def test_the_agents_own_pod_decides_the_root(node: Node) -> None:
    node.start(replace(pod(1), uid=OWN), pod(2))
    node.start(pod(3), root="user.slice/kubepods")
    node.list(replace(pod(1), uid=OWN))
    node.scan()
    assert {each.name for each in node.scan(after_s=10)} == {"shop/p1", f"pod:{uid(2)}"}


def test_a_copy_of_a_pods_cgroup_below_another_root_is_ignored(node: Node) -> None:
    node.start(pod(1), pod(2))
    node.start(pod(1), root="user.slice/kubepods")
    node.list(pod(1), pod(2))
    assert {each.path.split("/")[1] for each in node.scan()} == {"kubepods"}


def test_a_root_with_several_cgroups_per_pod_counts_each_pod_once(node: Node) -> None:
    pods = [pod(number) for number in range(1, 5)]
    node.start(*pods)
    copies = node.mount / "aaa.slice" / "kubepods"
    for each in pods:
        underscored = each.uid.replace("-", "_")
        for name in (f"pod{each.uid}", f"pod{underscored}", f"kubepods-pod{underscored}.slice"):
            (copies / name).mkdir(parents=True)
    node.list(*pods)
    assert {each.path.split("/")[1] for each in node.scan()} == {"kubepods"}
    assert node.source.foreign_roots == ("/aaa.slice/kubepods",)


def test_the_chosen_root_holds_although_another_one_has_more_listed_pods(node: Node) -> None:
    node.start(pod(1))
    node.list(pod(1), pod(2), pod(3))
    node.scan()
    node.start(pod(1), pod(2), pod(3), root="aaa.slice/kubepods")
    assert [each.path for each in node.scan(after_s=40)] == [f"/kubepods/burstable/pod{uid(1)}"]
    node.list(pod(2), pod(3))  # the root has no listed pod left, so kubelet uses another one
    assert {each.path.split("/")[1] for each in node.scan()} == {"aaa.slice"}


def test_the_root_with_the_agents_own_pod_goes_before_one_with_more_pods(node: Node) -> None:
    node.start(pod(2), pod(3), root="aaa.slice/kubepods")
    node.list(pod(2), pod(3))
    assert {each.path.split("/")[1] for each in node.scan()} == {"aaa.slice"}
    node.start(replace(pod(1), uid=OWN))
    assert {each.path.split("/")[1] for each in node.scan(after_s=40)} <= {"kubepods"}
    assert node.source.roots == ("/kubepods",)


def test_configured_roots_are_all_used(tmp_path: Path) -> None:
    node = Node(tmp_path, roots=("/a/kubepods", "/b/kubepods"))
    node.start(pod(1), root="a/kubepods")
    node.start(pod(2), root="b/kubepods")
    node.start(pod(3))
    node.list(pod(1), pod(2), pod(3))
    assert {each.name for each in node.scan()} == {"shop/p1", "shop/p2"}
