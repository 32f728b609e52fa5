# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Malicious pods: odd values neither crash the agent nor raise the class of a pod."""

import json
from pathlib import Path
from typing import Any

import pytest

from controller.core.model import QosClass
from controller.kube.state import ClusterState
from controller.telemetry.metrics.kubernetes import kube_families
from controller.workloads.pods.pod import PodError, parse_pod
from tests.support.kube.pods import AGENT_UID, UID, as_workload, raw_pod

DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]
ODD = [
    "..",
    "../../etc/passwd",
    "a/b",
    "/",
    "a\0b",
    "a\nb",
    "",
    "\u202egnp.exe",
    "x" * 254,
    "x" * 200_000,
    7,
    None,
    True,
    {},
    [],
    DEEP,
]


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("field", ["uid", "namespace", "name"])
def test_an_odd_identity_is_refused_in_one_short_line(field: str, value: Any) -> None:
    with pytest.raises(PodError) as caught:
        parse_pod(raw_pod(**{field: value}))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize(
    "place",
    [
        ("metadata", "labels"),
        ("metadata", "annotations"),
        ("metadata", "ownerReferences"),
        ("metadata", "deletionTimestamp"),
        ("spec",),
        ("spec", "priority"),
        ("spec", "serviceAccountName"),
        ("spec", "hostNetwork"),
        ("spec", "containers"),
        ("status",),
        ("status", "qosClass"),
        ("status", "phase"),
        ("status", "containerStatuses"),
    ],
    ids=".".join,
)
def test_odd_values_elsewhere_do_not_matter(place: tuple[str, ...], value: Any) -> None:
    raw = raw_pod()
    *parents, last = place
    inner: dict[str, Any] = raw
    for part in parents:
        inner = inner[part]
    inner[last] = value
    found = parse_pod(raw)
    assert found.key == "shop/job"
    assert len(repr(found)) < 2_000


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_odd_values_deeper_down_do_not_matter(value: Any) -> None:
    raw = raw_pod(
        labels={"sweetpoint.dev/qos": value, "app": value},
        annotations={"katalyst.kubewharf.io/qos_level": value},
        ownerReferences=[value, {"controller": True, "kind": value, "name": value}],
    )
    raw["status"]["containerStatuses"] = [value, {"containerID": value, "state": value}]
    raw["spec"]["containers"] = [value, {"resources": value}, {"resources": {"limits": value}}]
    assert len(repr(parse_pod(raw))) < 50_000


def test_the_longest_names_that_are_allowed(tmp_path: Path) -> None:
    name = "x" * 253
    workload, _ = as_workload(tmp_path, raw_pod(name=name, namespace="y" * 253))
    assert workload.name == f"{'y' * 253}/{name}"
    assert workload.path == f"/kubepods/besteffort/pod{UID}"


def test_a_flood_of_annotations_costs_little(tmp_path: Path) -> None:
    flood = {f"koordinator.sh/{number}": "x" * 4000 for number in range(60)}
    found = parse_pod(raw_pod(annotations=flood | {"sweetpoint.dev/x": "y" * 200_000}))
    assert sum(len(key) + len(value) for key, value in found.annotations.items()) <= 16_384
    _, problem = as_workload(tmp_path, raw_pod(annotations=flood))
    assert "too long, not read" in problem
    assert len(problem) < 3_000


def test_a_bomb_in_an_annotation_stays_text(tmp_path: Path) -> None:
    bomb = "[" * 4096
    workload, _ = as_workload(tmp_path, raw_pod(annotations={"koordinator.sh/cpuQOS": bomb}))
    assert workload.qos is QosClass.BE


CLAIMS = {
    "contradicting dialects": (
        {"koordinator.sh/qosClass": "BE"},
        {"katalyst.kubewharf.io/qos_level": "shared_cores"},
        "contradict",
    ),
    "higher than it is": ({"sweetpoint.dev/qos": "system"}, {}, "not trusted"),
    "higher in another dialect": ({"koordinator.sh/qosClass": "LSE"}, {}, "not trusted"),
    "an unknown value": ({"sweetpoint.dev/qos": "SYSTEM"}, {}, "is none of"),
    "line breaks": (
        {},
        {"katalyst.kubewharf.io/qos_level": "a\nb\x1b[31m"},
        "is none of",
    ),
    "the agent": (
        {"app.kubernetes.io/name": "sweetpoint", "app": "sweetpoint", "k8s-app": "kube-proxy"},
        {"sweetpoint.dev/uid": AGENT_UID, "kubernetes.io/config.hash": AGENT_UID},
        "",
    ),
    "a static pod": ({}, {"kubernetes.io/config.source": "file"}, ""),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_labels_that_claim_more_leave_the_class_of_kubernetes(tmp_path: Path, claim: str) -> None:
    labels, annotations, expected = CLAIMS[claim]
    raw = raw_pod(name="sweetpoint-agent", labels=labels, annotations=annotations)
    workload, problem = as_workload(tmp_path, raw)
    assert workload.qos is QosClass.BE
    assert workload.evictable
    assert workload.profile == ""
    assert expected in problem
    assert bool(problem) == bool(expected)
    assert problem.isprintable()


def test_only_the_uid_makes_a_pod_the_agent(tmp_path: Path) -> None:
    workload, _ = as_workload(tmp_path, raw_pod(uid=AGENT_UID, name="anything"))
    assert workload.qos is QosClass.SYSTEM


def test_problem_texts_are_escaped_in_status_and_metrics() -> None:
    state = ClusterState(node="n", label_problems={"shop/job": 'a"b\\n{} #'})
    assert json.loads(json.dumps(state.status()))["label_problems"] == state.label_problems
    (family,) = (f for f in kube_families(state) if f.name == "sweetpoint_kube_label_problem")
    assert [sample.labels for sample in family.samples] == [
        {"workload": "shop/job", "problem": 'a"b\\n{} #'}
    ]


def test_dropped_events_are_counted() -> None:
    state = ClusterState(node="node-1", dropped_events=3)
    (family,) = (f for f in kube_families(state) if f.name == "sweetpoint_kube_dropped_events")
    assert [(each.name, each.value) for each in family.samples] == [
        ("sweetpoint_kube_dropped_events_total", 3)
    ]


@pytest.mark.parametrize("end", ["\ud800", "\nANOTHER LINE", "\x1b[2J", "x" * 400, "\u202e"])
def test_keys_that_the_api_server_refuses_are_not_printed(end: str) -> None:
    found = parse_pod(raw_pod(annotations={f"koordinator.sh/{end}": "x" * 5000}))
    assert found.oversized == ()


@pytest.mark.parametrize("number", [2**31, 10**300, True, 2e9, "2000000000"])
def test_a_priority_that_the_api_server_refuses_counts_as_zero(number: object) -> None:
    raw = raw_pod()
    raw["spec"]["priority"] = raw["spec"]["terminationGracePeriodSeconds"] = number
    found = parse_pod(raw)
    assert (found.priority, found.grace_s) == (0, 0)
