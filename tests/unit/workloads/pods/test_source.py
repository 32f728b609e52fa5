# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pods joined with cgroups: which are workloads, their classes and services, foreign roots."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from controller.config.sections.io import IoClassConfig
from controller.config.sections.resctrl import ResctrlClass
from controller.core.model import CgroupId, QosClass, Target, TargetKind, Workload
from controller.host.facts import memory_bytes, possible_cpus
from controller.workloads.pods.classify import QOS_LABEL
from controller.workloads.pods.pod import Owner
from controller.workloads.pods.profile_choice import ProfileChoice
from tests.unit.workloads.pods.fake_node import CONTAINERS, OWN, Node, pod, uid


def test_a_service(node: Node) -> None:
    owner = Owner(kind="ReplicaSet", name="web-7c9")
    labels = {"pod-template-hash": "7c9", "sweetpoint.dev/profile": "redis"}
    (found,) = node.run(pod(1, owner=owner, labels=labels, priority=7))
    path = f"/kubepods/burstable/pod{uid(1)}"
    inode = (node.mount / path[1:]).stat().st_ino
    assert found == Workload(
        name="shop/p1",
        cgroup=CgroupId("cpu", inode),
        path=path,
        qos=QosClass.LS,
        service="shop/web@redis",
        profile="redis",
        priority=7,
        evictable=False,
    )
    assert node.source.pod_of(found.cgroup) == pod(1, owner=owner, labels=labels, priority=7)


@pytest.mark.parametrize(
    ("changes", "service"),
    [
        ({}, "shop/p1"),
        ({"labels": {"app": "web"}}, "shop/web"),
        ({"labels": {"app": "web", "app.kubernetes.io/name": "site"}}, "shop/site"),
        ({"labels": {"app": "../etc"}}, "shop/p1"),
        ({"owner": Owner(kind="StatefulSet", name="db")}, "shop/db"),
        ({"owner": Owner(kind="ReplicaSet", name="web-7c9")}, "shop/web-7c9"),
        ({"owner": Owner(kind="DaemonSet", name="db"), "labels": {"app": "x"}}, "shop/db"),
    ],
)
def test_which_service(node: Node, changes: dict[str, Any], service: str) -> None:
    (found,) = node.run(pod(1, **changes))
    assert found.service == f"{service}@default"


def test_a_profile_that_does_not_exist_is_reported_and_not_used(node: Node) -> None:
    (found,) = node.run(pod(1, labels={"sweetpoint.dev/profile": "x" * 63}))
    assert found.profile == "default"
    ((found_pod, problem),) = node.source.problems
    assert found_pod.key == "shop/p1"
    assert "no profile has that name" in problem


def test_another_profile_chooser_is_applied_at_once(node: Node) -> None:
    (before,) = node.run(pod(1))
    assert before.profile == "default"
    (after,) = node.scan(choose=lambda _: ProfileChoice("nginx"))
    assert (after.profile, after.service) == ("nginx", "shop/p1@nginx")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"owner": Owner(kind="Job", name="j")}, True),
        ({"owner": Owner(kind="DaemonSet", name="d")}, False),
        ({"owner": Owner(kind="Node", name="n")}, False),
        ({"terminating": True}, False),
        ({"finished": True}, False),
        ({"mirror": True}, False),
        ({"namespace": "kube-system"}, False),
        ({"priority": 2_000_000_000}, False),
        ({"labels": {"sweetpoint.dev/qos": "latency-sensitive"}}, True),  # not trusted to raise it
    ],
)
def test_which_pods_may_be_evicted(node: Node, changes: dict[str, Any], expected: bool) -> None:
    (found,) = node.run(pod(1, "BestEffort", **changes))
    assert found.evictable is expected


def test_services_and_the_agent_itself_are_never_evicted(node: Node) -> None:
    own = replace(pod(1, "BestEffort"), uid=OWN)
    found = {each.name: each for each in node.run(pod(2), pod(3, "Guaranteed"), own)}
    assert not any(each.evictable for each in found.values())
    assert found["shop/p1"].qos is QosClass.SYSTEM


def test_the_class_of_resctrl_that_the_pod_chooses(node: Node) -> None:
    node.classes.append(ResctrlClass("gold", 0, 1, 1, annotation=True))
    key = "rdt.resources.beta.kubernetes.io/pod"
    found = node.run(pod(1, annotations={key: "gold"}), pod(2, annotations={key: "lead"}))
    assert [each.resctrl_class for each in found] == ["gold", ""]
    assert [each.name for each in node.source.workloads_of({uid(2)})] == ["shop/p2"]
    ((refused, problem),) = node.source.problems
    assert refused.key == "shop/p2" and "'lead' is no class" in problem


def test_the_class_for_disks_that_the_pod_chooses(node: Node) -> None:
    node.io_classes.append(IoClassConfig("bulk", weight=20, annotation=True))
    key = "blockio.resources.beta.kubernetes.io/pod"
    found = node.run(
        pod(1, annotations={key: "bulk"}),
        pod(2, annotations={key: "lead"}),
        pod(3, "BestEffort", annotations={key: "bulk"}),
    )
    assert {each.name: each.io_class for each in found} == {
        "shop/p1": "bulk",
        "shop/p2": "",
        "shop/p3": "",
    }
    problems = {pod.key: text for pod, text in node.source.problems}
    assert "'lead' is no class" in problems["shop/p2"]
    assert "best-effort work has no class" in problems["shop/p3"]


def test_other_classes_for_disks_apply_to_pods_that_run(node: Node) -> None:
    key = "blockio.resources.beta.kubernetes.io/pod"
    (before,) = node.run(pod(1, annotations={key: "bulk"}))
    node.io_classes.append(IoClassConfig("bulk", weight=20, annotation=True))
    (found,) = node.scan()
    assert (before.io_class, found.io_class) == ("", "bulk")
    assert not [*node.source.problems]
    node.io_classes[:] = [IoClassConfig("all", weight=20, koordinator=frozenset({"LS"}))]
    (found,) = node.scan()
    assert found.io_class == "all"
    ((_, problem),) = node.source.problems
    assert "'bulk' is no class" in problem


@pytest.mark.parametrize(
    ("labels", "group"),
    [
        ({}, ""),
        ({"koordinator.sh/core-sched-group-id": "g1"}, "shop/g1"),
        ({"koordinator.sh/coreSchedulingGroup": "g2"}, "shop/g2"),
        ({"koordinator.sh/core-sched-policy": "exclusive"}, uid(1)),
        ({"koordinator.sh/core-sched-policy": "none"}, ""),
        ({"koordinator.sh/core-sched-group-id": "../x"}, ""),
    ],
)
def test_core_groups(node: Node, labels: dict[str, str], group: str) -> None:
    (found,) = node.run(pod(1, "BestEffort", labels=labels))
    assert found.core_group == group


@pytest.mark.parametrize(
    ("cpu", "memory", "expected"),
    [
        (500, 1 << 20, (0.5, 1 << 20)),
        (10**18, 10**18, (None, None)),
        (1000 * len(possible_cpus()), memory_bytes(), (None, None)),
    ],
)
def test_a_request_of_the_whole_capacity_is_no_limit(
    tmp_path: Path, cpu: int, memory: int, expected: tuple[float | None, int | None]
) -> None:
    node = Node(tmp_path, names=("x.org/cpu", "x.org/memory"))
    requests = {"x.org/cpu": cpu, "x.org/memory": memory}
    (workload,) = node.run(pod(1, "BestEffort", requests=requests))
    assert (workload.limit_cpus, workload.limit_memory_bytes) == expected


def test_a_service_has_the_requests_of_its_pod_and_best_effort_work_has_none(node: Node) -> None:
    usual: dict[str, Any] = {"request_cpus": 0.5, "request_memory_bytes": 1 << 20}
    found = node.run(pod(1, **usual), pod(2, "BestEffort", **usual))
    requests = {each.name: (each.request_cpus, each.request_memory_bytes) for each in found}
    assert requests == {"shop/p1": (0.5, 1 << 20), "shop/p2": (None, None)}


def test_a_pod_without_a_cgroup_is_no_workload(node: Node) -> None:
    node.list(pod(1))
    assert node.scan() == ()


def test_an_unchanged_result_is_the_same_tuple(node: Node) -> None:
    before = node.run(pod(1), pod(2, "BestEffort"))
    revision = node.source.revision
    assert node.scan() is before
    assert node.source.revision == revision
    node.list(pod(1), replace(pod(2, "BestEffort"), grace_s=7))
    assert node.scan() is before  # the changed field is not part of a workload


def test_an_unchanged_workload_stays_the_same_object(node: Node) -> None:
    first, second = node.run(pod(1), pod(2))
    node.start(pod(3))
    # As after a new list: all pods are other objects, and one of them has changed.
    node.list(pod(1), replace(pod(2), priority=5), pod(3))
    found = node.scan()
    assert found[0] is first
    assert found[1] == second._replace(priority=5)
    assert len(found) == 3


def test_a_running_pod_that_is_no_longer_listed_keeps_its_class(node: Node) -> None:
    (before,) = node.run(pod(1, "BestEffort", priority=3))
    node.list()
    (after,) = node.scan(after_s=100)
    assert after == before._replace(evictable=False)
    assert node.source.unlisted == 1


def test_a_reused_cgroup_id_can_be_another_pod(node: Node) -> None:
    before, after = pod(1, "BestEffort"), pod(2, "BestEffort")
    (first,) = node.run(before)
    folder = node.mount / "kubepods/besteffort"
    (folder / f"pod{before.uid}").rename(folder / f"pod{after.uid}")
    node.list(before, after)
    (second,) = node.scan()
    assert second.cgroup == first.cgroup
    assert (first.name, second.name) == ("shop/p1", "shop/p2")


def test_a_successor_of_the_same_name_gets_the_name(node: Node) -> None:
    node.run(pod(1))
    successor = replace(pod(2), name="p1")
    node.start(successor)
    node.list(successor)
    found = {each.path.rpartition("/pod")[2]: each.name for each in node.scan()}
    assert found[uid(2)] == "shop/p1"
    assert found[uid(1)].startswith("shop/p1#")


LOWERED = {"sweetpoint.dev/qos": "best-effort"}
CONTAINER = "0123456789ab" + "c" * 52


@pytest.mark.parametrize(
    ("version", "changes", "divided"),
    [
        ("v1", {"labels": LOWERED}, True),
        ("v1", {"labels": LOWERED, "qos_class": "Guaranteed"}, True),
        ("v1", {}, False),  # a service
        ("v1", {"qos_class": "BestEffort"}, False),  # no container has a limit
        ("v1", {"labels": LOWERED, "namespace": "kube-system"}, False),
        ("v2", {"labels": LOWERED}, False),  # the kernel compares no quotas
    ],
)
def test_which_pods_are_steered_by_container(
    tmp_path: Path, version: Literal["v1", "v2"], changes: dict[str, Any], divided: bool
) -> None:
    found = Node(tmp_path, version=version).run(pod(1, **changes))
    assert [each.container_of is not None for each in found] == [divided]


def test_containers_are_workloads_of_their_pod(node: Node) -> None:
    changes = {"sweetpoint.dev/qos": "best-effort"}
    member = pod(1, labels=changes, priority=7)
    node.start(member)
    path = f"/kubepods/burstable/pod{uid(1)}"
    folder = node.mount / path[1:]
    (folder / CONTAINERS[0]).rmdir()
    (folder / f"cri-containerd-{CONTAINER}.scope").mkdir()
    node.list(member)
    (found,) = node.scan()
    whole = Target(TargetKind.CGROUP, "cpu", folder.stat().st_ino, path)
    assert (found.name, found.service) == ("shop/p1/0123456789ab", "shop/p1")
    assert found.path == f"{path}/cri-containerd-{CONTAINER}.scope"
    assert found.cgroup.id == (node.mount / found.path[1:]).stat().st_ino
    assert (found.container_of, found.whole, found.whole_name) == (whole, whole[1:3], "shop/p1")
    assert (found.qos, found.priority, found.evictable) == (QosClass.BE, 7, True)
    assert node.source.pod_of(found.whole) == member


def test_a_container_that_starts_or_ends_is_found_by_the_next_scan(node: Node) -> None:
    member = pod(1, labels=LOWERED)
    (first,) = before = node.run(member)
    folder = node.mount / first.path[1:]
    assert node.scan() is before
    second_folder = folder.with_name(CONTAINERS[1])
    second_folder.mkdir()
    found = node.scan()
    assert {each.path.rpartition("/")[2] for each in found} == set(CONTAINERS)
    assert any(each is first for each in found)  # an unchanged one stays the same object
    folder.rmdir()
    (second,) = node.scan()
    assert second.path.endswith(f"/{CONTAINERS[1]}")
    second_folder.rmdir()
    assert node.scan() == node.scan() == ()
    folder.mkdir()
    assert len(node.scan()) == 1


def test_a_container_that_the_runtime_tells_is_found_within_the_second(node: Node) -> None:
    (first,) = node.run(pod(1, labels=LOWERED))
    node.tell(pod(1))
    node.scan(after_s=60)  # the containers of a new pod are found in any case
    (node.mount / first.path[1:]).with_name(CONTAINERS[1]).mkdir()
    assert node.scan(after_s=0) == (first,)
    node.tell(pod(1))
    assert len(node.scan(after_s=0)) == 2


def test_a_pod_that_becomes_best_effort_is_divided_and_back(node: Node) -> None:
    (service,) = node.run(pod(1))
    node.list(pod(1, labels=LOWERED))
    (container,) = node.scan()
    assert container.whole == service.cgroup
    node.list()  # its API object is gone, its containers still run
    (after,) = node.scan()
    assert after == container._replace(evictable=False)
    node.list(pod(1))
    assert node.scan() == (service,)


def test_a_pod_is_divided_whose_container_has_a_limit_of_a_plugin(node: Node) -> None:
    (whole,) = node.run(pod(1, "BestEffort"))
    node.tell(pod(1, "BestEffort"))
    assert node.scan() == (whole,)
    node.tell(pod(1, "BestEffort"), limited=True)
    (container,) = node.scan()
    assert container.whole == whole.cgroup and container.path == f"{whole.path}/{CONTAINERS[0]}"


def test_without_the_api_the_cgroup_decides_after_5_s(node: Node) -> None:
    (known,) = node.run(pod(9))
    node.start(pod(1), pod(2, "Guaranteed"), replace(pod(3), uid="ab" * 16))
    assert node.scan() == (known,)
    assert node.scan(after_s=3) == (known,)
    found = {each.name: each for each in node.scan(after_s=3)}
    assert {name: each.qos for name, each in found.items()} == {
        "shop/p9": QosClass.LS,
        f"pod:{uid(1)}": QosClass.LS,
        f"pod:{uid(2)}": QosClass.LS,
        f"pod:{'ab' * 16}": QosClass.SYSTEM,
    }
    assert found[f"pod:{uid(1)}"].service == f"pod:{uid(1)}@default"
    node.list(pod(1))
    assert "shop/p1" in {each.name for each in node.scan()}


def test_without_the_api_the_runtime_decides_after_5_s(node: Node) -> None:
    lowered = pod(1, labels={QOS_LABEL: "best-effort"})
    service = pod(2, labels={"app": "shop-web"})
    critical, static = pod(3, "BestEffort"), pod(4, "BestEffort")
    node.start(lowered, service, critical, static)
    node.tell(lowered)
    node.tell(service)
    node.tell(critical, score=-997)
    node.tell(static, source="file")
    assert node.scan() == () and node.scan(3) == ()
    found = {each.whole_name: each for each in node.scan(2)}
    assert {name: each.qos for name, each in found.items()} == {
        "shop/p1": QosClass.BE,
        "shop/p2": QosClass.LS,
        "shop/p3": QosClass.SYSTEM,
        "shop/p4": QosClass.SYSTEM,
    }
    assert found["shop/p2"].service == "shop/shop-web@default"
    assert not found["shop/p1"].evictable and not node.source.matched
    node.list(lowered, service, critical, static)
    assert {each.whole_name: each.evictable for each in node.scan()}["shop/p1"]


def test_best_effort_work_that_is_told_before_it_is_listed_does_not_wait(node: Node) -> None:
    node.run(pod(1))
    node.start(pod(2), pod(3, "BestEffort"))
    node.tell(pod(2))
    node.tell(pod(3))
    assert {each.name for each in node.scan()} == {"shop/p1", "shop/p3"}
    assert {each.name for each in node.scan(5)} == {"shop/p1", "shop/p2", "shop/p3"}


def test_a_guaranteed_pod_is_not_critical_by_its_score(node: Node) -> None:
    node.start(pod(1, "Guaranteed"))
    node.tell(pod(1), score=-997)
    node.scan()
    (found,) = node.scan(5)
    assert found.qos is QosClass.LS


def test_what_the_runtime_tells_of_no_kubelet_is_left_out(node: Node) -> None:
    node.start(pod(1))
    node.tell(replace(pod(1), namespace="no/name"))
    node.scan()
    assert node.scan(5) == ()


def test_no_pod_is_a_workload_before_the_list_has_one_of_this_host(node: Node) -> None:
    node.start(pod(1, "BestEffort"), pod(2), replace(pod(3), uid="ab" * 16))
    assert [node.scan(after_s=10) for _ in range(3)] == [()] * 3
    node.list()  # read, and empty
    assert node.scan(after_s=10) == ()
    node.list(pod(7), pod(8))  # those of another node
    assert node.scan(after_s=10) == ()
    assert not node.source.matched
    assert node.source.unlisted == 3
    node.list(pod(2))
    assert {each.name for each in node.scan()} == {"shop/p2", f"pod:{'ab' * 16}"}
    assert node.source.matched


def test_a_list_that_once_had_a_pod_of_this_host_stays_that_of_this_node(node: Node) -> None:
    node.run(pod(1))
    node.list()
    node.start(pod(2))
    node.scan()
    assert {each.name for each in node.scan(after_s=10)} == {"shop/p1", f"pod:{uid(2)}"}
    assert node.source.matched


def test_classes_are_counted_by_kind_of_rule(node: Node) -> None:
    node.run(
        pod(1),
        pod(2, labels={"koordinator.sh/qosClass": "BE"}),
        pod(3, namespace="kube-system"),
    )
    assert node.source.classes == {
        ("latency-sensitive", "kubernetes"): 1,
        ("best-effort", "koordinator.sh/qosClass"): 1,
        ("system", "system"): 1,
    }


def test_counts_follow_changed_and_removed_pods(node: Node) -> None:
    node.run(pod(1), pod(2), pod(3), pod(4))
    folder = node.mount / "kubepods/burstable"
    lowered = pod(1, labels={"sweetpoint.dev/qos": "best-effort"})
    (folder / f"pod{uid(2)}/{CONTAINERS[0]}").rmdir()
    (folder / f"pod{uid(2)}").rmdir()
    (folder / f"pod{uid(3)}").rename(folder / f"pod{uid(5)}")  # the same cgroup id for another pod
    node.list(lowered, pod(4), pod(5, namespace="kube-system"))
    node.scan()
    assert node.source.classes == {
        ("best-effort", "sweetpoint.dev/qos"): 1,
        ("latency-sensitive", "kubernetes"): 1,
        ("system", "system"): 1,
    }
