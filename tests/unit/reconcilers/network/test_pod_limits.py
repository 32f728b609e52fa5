# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Bandwidth limits from annotations of pods: parsing, assignment of classes, reported gaps."""

from pathlib import Path
from typing import Any

import pytest

from actuators.tc.shape import FIRST_LIMIT, Shape, Tree, changed_limits, same_layout
from controller.config.load import ConfigError, load
from controller.config.sections.network import LimitRule
from controller.core.model import CgroupId, QosClass, Target, TargetKind, Workload
from controller.reconcilers.network.pod_filters import class_of
from controller.reconcilers.network.pod_limits import PodLimits, unkept
from controller.workloads.pods.requests import NETWORK_QOS, NetworkLimit, network_limit
from tests.support.kube.pods import as_workload, raw_pod

BE, LS = QosClass.BE, QosClass.LS
SHAPE = Shape(1000, (100, 1000), (600, 1000), (50, 1000), (300, 1000, 1000))


@pytest.mark.parametrize(
    ("text", "egress", "ingress"),
    [
        ('{"IngressLimit": "10M", "EgressLimit": "20M"}', 2_500_000, 1_250_000),
        ('{"ingressLimit": "8k", "egressLimit": "1Gi"}', 2**30 // 8, 1000),
        ('{"EGRESSLIMIT": "1G"}', 125_000_000, None),
        ('{"ingressLimit": "0", "egressLimit": ""}', None, None),
        ('{"other": "1M"}', None, None),
        ("{}", None, None),
        ("", None, None),
    ],
)
def test_limits_in_the_annotation(text: str, egress: int | None, ingress: int | None) -> None:
    assert network_limit({NETWORK_QOS: text}, BE) == NetworkLimit(egress, ingress)


@pytest.mark.parametrize("value", ['"7999"', '"-1M"', '"1 M"', '"NaN"', '"99E"', "1000000", "[]"])
def test_an_invalid_limit_is_reported(value: str) -> None:
    found = network_limit({NETWORK_QOS: f'{{"ingressLimit": "1M", "egressLimit": {value}}}'}, BE)
    assert found[:2] == (None, None)
    assert found.problem == (
        "koordinator.sh/networkQOS: egressLimit must be a quantity such as 20M, in bits per second "
        "and at least 8k"
    )


@pytest.mark.parametrize("text", ["x", "[]", "7", '"1M"', "[" * 4000, '{"a": 1', "null"])
def test_an_annotation_that_is_no_json_object_is_reported(text: str) -> None:
    problem = "koordinator.sh/networkQOS is not a JSON object"
    assert network_limit({NETWORK_QOS: text}, BE) == NetworkLimit(problem=problem)


def test_only_best_effort_pods_are_limited() -> None:
    annotations = {NETWORK_QOS: '{"egressLimit": "1M"}'}
    assert network_limit(annotations, QosClass.SYSTEM) == NetworkLimit()
    assert network_limit({}, LS) == NetworkLimit()
    found = network_limit(annotations, LS)
    assert found.egress is None and found.problem is not None and "best-effort" in found.problem


def workload(number: int, qos: QosClass = BE, **limits: Any) -> Workload:
    name = f"w{number}"
    limits = limits or {"limit_egress_bytes_per_s": 100 * number}
    return Workload(name, CgroupId("cpu", number), f"/{name}", qos, name, "", **limits)


def test_the_containers_of_a_pod_have_one_class() -> None:
    pods = PodLimits(5, 2)
    whole = Target(TargetKind.CGROUP, "cpu", 9, "/pod")
    one, two = (workload(1)._replace(container_of=whole, cgroup=CgroupId("cpu", n)) for n in (1, 2))
    assert pods.set_workloads([one, two])
    assert pods.numbers == {CgroupId("cpu", 9): 5} and pods.without == 0
    assert not pods.set_workloads([one, two])
    rule = LimitRule("w1", 1000, None)
    assert class_of(one._replace(name="w1/0123456789ab"), (rule,)) == FIRST_LIMIT


def test_a_class_is_assigned_and_freed() -> None:
    pods = PodLimits(5, 2)
    one, two, three = (workload(number) for number in (1, 2, 3))
    assert pods.ceilings(1000, ingress=False) == (1000, 1000)
    assert pods.set_workloads([one, workload(9, LS), two, three])
    assert pods.numbers == {one.cgroup: 5, two.cgroup: 6} and pods.without == 1
    assert pods.ceilings(1000, ingress=False) == (100, 200)
    assert pods.ceilings(150, ingress=False) == (100, 150)
    assert pods.ceilings(1000, ingress=True) == (1000, 1000)
    assert not pods.set_workloads([three, two, one])
    # A pod keeps its class while others are added and removed.
    assert pods.set_workloads([three, two])
    assert pods.numbers == {two.cgroup: 6, three.cgroup: 5} and pods.without == 0
    assert pods.ceilings(1000, ingress=False) == (300, 200)
    changed = two._replace(limit_egress_bytes_per_s=None, limit_ingress_bytes_per_s=7)
    assert pods.set_workloads([changed, three])
    assert pods.ceilings(1000, ingress=False) == (300, 1000)
    assert pods.ceilings(1000, ingress=True) == (1000, 7)
    assert pods.set_workloads([two._replace(limit_egress_bytes_per_s=None)])
    assert pods.numbers == {} and pods.classes == range(5, 7)


def test_limits_without_a_class_are_reported() -> None:
    assert unkept(0, 4, shaped=True) == unkept(0, 0, shaped=False) == ""
    assert "classes for 4 of them (network.pod_limits)" in unkept(1, 4, shaped=True)
    assert "no link is shaped" in unkept(1, 4, shaped=False)


def test_limits_change_without_a_new_layout() -> None:
    before = Tree(SHAPE, SHAPE)
    squeezed = SHAPE._replace(best_effort=(50, 70))
    assert same_layout(before, Tree(squeezed, SHAPE))
    after = Tree(SHAPE._replace(limits=(300, 20, 1000)), squeezed._replace(limits=(300, 1000, 9)))
    assert not same_layout(before, after)
    assert changed_limits(before, after) == ({5: 20}, {6: 9})
    assert changed_limits(before, Tree(squeezed, SHAPE)) == ({}, {})
    assert changed_limits(Tree(None, SHAPE), Tree(None, after.ingress)) == ({}, {6: 9})
    for other in (
        Tree(SHAPE, None),
        Tree(SHAPE._replace(rate=999), SHAPE),
        Tree(SHAPE._replace(best_effort=(51, 1000)), SHAPE),
        Tree(SHAPE._replace(limits=(300, 1000)), SHAPE),
    ):
        assert changed_limits(before, other) is None and not same_layout(before, other)


def test_the_number_of_classes_is_limited(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"

    def problem(text: str) -> str:
        file.write_text(f"kubernetes: {{}}\nnetwork: {{devices: [{{name: eth0}}], {text}}}\n")
        try:
            network = load(file, cpus=4).network
        except ConfigError as error:
            return error.problems[0].partition("network.")[2]
        assert network is not None
        return str(network.pod_limits)

    assert problem("mark_mask: '0xf'") == "0"
    assert problem("pod_limits: 12") == "12"
    assert problem("pod_limits: 13").startswith("mark_mask: has room for 15 classes")
    limits = ", ".join("{workload: a, egress: 1mbit}" for _ in range(10))
    text = f"mark_mask: '0xffff', limits: [{limits}], pod_limits: "
    assert problem(f"{text}240") == "240"
    assert problem(f"{text}241") == "pod_limits: together with limits must be at most 250"
    assert problem("pod_limits: -1").startswith("pod_limits: must be")


def test_a_pod_becomes_a_workload_with_its_limits(tmp_path: Path) -> None:
    metadata = {"annotations": {NETWORK_QOS: '{"IngressLimit": "10M", "EgressLimit": "20M"}'}}
    found, problem = as_workload(tmp_path, raw_pod(**metadata))
    limits = (found.limit_egress_bytes_per_s, found.limit_ingress_bytes_per_s)
    assert limits == (2_500_000, 1_250_000) and not problem


def test_a_pod_with_an_invalid_limit_has_none_and_the_limit_is_reported(tmp_path: Path) -> None:
    metadata = {"annotations": {NETWORK_QOS: '{"egressLimit": "\\u001b[31m"}'}}
    found, problem = as_workload(tmp_path, raw_pod(**metadata))
    assert found.qos is BE and found.limit_egress_bytes_per_s is None
    assert "egressLimit must be a quantity" in problem and problem.isprintable()
