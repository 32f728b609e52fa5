# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pods as the API server sends them: what is kept, and which class they get."""

from typing import Any

import pytest

from controller.core.model import QosClass
from controller.workloads.pods.classify import ClassRules, classify
from controller.workloads.pods.pod import Owner, Pod, PodError, parse_pod

UID = "0b8d3a52-3f0e-4c6e-9d7a-1f2e3d4c5b6a"
RULES = ClassRules(trusted_namespaces=frozenset({"trusted"}), own_uid=UID[:-1] + "0")
ID = "ab" * 32


def raw_pod(**changes: Any) -> dict[str, Any]:
    """A Burstable pod with one running container; *changes* replace parts of its metadata."""
    metadata = {"uid": UID, "namespace": "shop", "name": "web-7c9-x2x", **changes}
    return {
        "metadata": metadata,
        "spec": {"priority": 0, "serviceAccountName": "web"},
        "status": {
            "qosClass": "Burstable",
            "phase": "Running",
            "containerStatuses": [
                {"containerID": f"containerd://{ID}", "state": {"running": {}}},
                {"containerID": f"containerd://{'cd' * 32}", "state": {"terminated": {}}},
            ],
        },
    }


def pod(qos_class: str = "Burstable", **changes: Any) -> Pod:
    raw = raw_pod(**changes)
    raw["status"]["qosClass"] = qos_class
    return parse_pod(raw)


def test_what_is_kept() -> None:
    owner = {"kind": "ReplicaSet", "name": "web-7c9", "controller": True}
    labels = {"app": "web", "koordinator.sh/qosClass": "LS", "something/else": "x"}
    kept = pod(labels=labels, ownerReferences=[owner])
    assert kept.key == "shop/web-7c9-x2x"
    assert kept.uid == UID
    assert kept.labels == {"app": "web", "koordinator.sh/qosClass": "LS"}
    assert kept.owner == Owner(kind="ReplicaSet", name="web-7c9")
    assert kept.service_account == "web"
    assert not (kept.finished or kept.terminating or kept.mirror)


def test_a_container_that_ends_changes_nothing_for_us() -> None:
    before, after = raw_pod(), raw_pod()
    after["status"]["containerStatuses"][0]["state"] = {"terminated": {}}
    assert parse_pod(before) == parse_pod(after)


@pytest.mark.parametrize(
    "changes",
    [
        {"uid": "../../etc"},
        {"uid": None},
        {"uid": "ab" * 16},  # that of a static pod
        {"name": "../up"},
        {"name": "a" * 254},
        {"name": "nul\0"},
        {"namespace": "a/b"},
        {"namespace": ["a"]},
        {"annotations": {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": UID}},
    ],
)
def test_a_pod_without_sane_identity_is_refused_in_one_line(changes: dict[str, Any]) -> None:
    with pytest.raises(PodError) as caught:
        parse_pod(raw_pod(**changes))
    assert "\n" not in str(caught.value)
    assert "\0" not in str(caught.value)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("raw", [{}, {"metadata": []}, {"metadata": {"name": {}}}, {"spec": "x"}])
def test_no_pod_at_all_is_refused(raw: Any) -> None:
    with pytest.raises(PodError):
        parse_pod(raw)


def test_a_long_annotation_is_dropped_and_named() -> None:
    key = "katalyst.kubewharf.io/qos_level"
    kept = pod(annotations={key: "x" * 200_000, "note": "y" * 200_000})
    assert kept.annotations == {}
    assert kept.oversized == (key,)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ([{}], "BestEffort"),
        ([{"requests": {"cpu": "1"}}], "Burstable"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}], "Guaranteed"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}, {}], "Burstable"),
        ([{"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}], "Burstable"),
        ([{"limits": {"kubernetes.io/batch-cpu": "1000"}}], "BestEffort"),
    ],
)
def test_the_class_of_a_pod_that_kubelet_has_not_seen(
    resources: list[dict[str, Any]], expected: str
) -> None:
    raw = raw_pod()
    del raw["status"]["qosClass"]
    raw["spec"]["containers"] = [{"resources": each} for each in resources]
    assert parse_pod(raw).qos_class == expected


@pytest.mark.parametrize(
    ("qos_class", "expected"),
    [("Guaranteed", QosClass.LS), ("Burstable", QosClass.LS), ("BestEffort", QosClass.BE)],
)
def test_without_labels_the_kubernetes_class_decides(qos_class: str, expected: QosClass) -> None:
    assert classify(pod(qos_class), RULES).qos is expected


@pytest.mark.parametrize(
    ("where", "key", "value", "expected"),
    [
        ("labels", "sweetpoint.dev/qos", "best-effort", QosClass.BE),
        ("labels", "sweetpoint.dev/qos", "latency-sensitive", QosClass.LS),
        ("labels", "koordinator.sh/qosClass", "BE", QosClass.BE),
        ("labels", "koordinator.sh/qosClass", "LSR", QosClass.LS),
        ("annotations", "katalyst.kubewharf.io/qos_level", "reclaimed_cores", QosClass.BE),
        ("annotations", "katalyst.kubewharf.io/qos_level", "dedicated_cores", QosClass.LS),
    ],
)
def test_the_dialects(where: str, key: str, value: str, expected: QosClass) -> None:
    found = classify(pod("Burstable", **{where: {key: value}}), RULES)
    assert (found.qos, found.rule, found.problem) == (expected, f"{key}={value}", None)


@pytest.mark.parametrize("word", ["latency-sensitive", "system"])
def test_a_label_raises_only_where_that_is_trusted(word: str) -> None:
    labels = {"sweetpoint.dev/qos": word}
    refused = classify(pod("BestEffort", labels=labels), RULES)
    assert refused.qos is QosClass.BE
    assert refused.problem is not None
    assert "shop is not trusted" in refused.problem
    raised = classify(pod("BestEffort", labels=labels, namespace="trusted"), RULES)
    assert raised.qos is QosClass(word)


def test_our_own_word_goes_before_the_others() -> None:
    labels = {"sweetpoint.dev/qos": "best-effort", "koordinator.sh/qosClass": "LS"}
    assert classify(pod(labels=labels), RULES).qos is QosClass.BE


def test_dialects_that_contradict_each_other_cancel() -> None:
    found = classify(
        pod(
            labels={"koordinator.sh/qosClass": "LS"},
            annotations={"katalyst.kubewharf.io/qos_level": "reclaimed_cores"},
        ),
        RULES,
    )
    assert found.qos is QosClass.LS
    assert found.rule == "Kubernetes QoS class Burstable"
    assert found.problem is not None
    assert "contradict" in found.problem


def test_an_unknown_word_is_named_and_not_believed() -> None:
    found = classify(pod("BestEffort", labels={"koordinator.sh/qosClass": "LSX"}), RULES)
    assert found.qos is QosClass.BE
    assert found.problem is not None
    assert "'LSX'" in found.problem


def test_what_runs_the_node_is_system_whatever_its_labels() -> None:
    labels = {"sweetpoint.dev/qos": "best-effort", "koordinator.sh/qosClass": "BE"}
    critical = raw_pod(labels=labels)
    critical["spec"]["priority"] = 2_000_000_000  # system-cluster-critical
    mirror = {"kubernetes.io/config.mirror": "f" * 32, "kubernetes.io/config.hash": "f" * 32}
    for each in (
        parse_pod(critical),
        pod("BestEffort", labels=labels, namespace="kube-system"),
        pod("BestEffort", labels=labels, annotations=mirror),
        pod("BestEffort", labels=labels, uid=RULES.own_uid),
    ):
        assert classify(each, RULES).qos is QosClass.SYSTEM


def test_a_pod_that_claims_to_be_static_keeps_its_class() -> None:
    claims = {"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": "f" * 32}
    found = classify(pod("BestEffort", annotations=claims), RULES)
    assert found.qos is QosClass.BE
