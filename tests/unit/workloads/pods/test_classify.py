# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The class of a pod, by its API object and by its cgroup alone."""

from pathlib import Path

import pytest

from controller.core.model import QosClass
from controller.workloads.pods.cgroups import PodCgroup
from controller.workloads.pods.classify import ClassRules, classify, classify_by_cgroup
from controller.workloads.pods.pod import parse_pod
from tests.support.kube.pods import AGENT_UID, UID, parsed_pod, raw_running_pod

RULES = ClassRules(trusted_namespaces=frozenset({"trusted"}), own_uid=AGENT_UID)


@pytest.mark.parametrize(
    ("qos_class", "expected"),
    [("Guaranteed", QosClass.LS), ("Burstable", QosClass.LS), ("BestEffort", QosClass.BE)],
)
def test_without_labels_the_kubernetes_class_decides(qos_class: str, expected: QosClass) -> None:
    assert classify(parsed_pod(qos_class), RULES).qos is expected


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
    found = classify(parsed_pod("Burstable", **{where: {key: value}}), RULES)
    assert (found.qos, found.rule, found.problem) == (expected, f"{key}={value}", None)


@pytest.mark.parametrize("word", ["latency-sensitive", "system"])
def test_a_label_raises_the_class_only_in_a_trusted_namespace(word: str) -> None:
    labels = {"sweetpoint.dev/qos": word}
    refused = classify(parsed_pod("BestEffort", labels=labels), RULES)
    assert refused.qos is QosClass.BE
    assert refused.problem is not None
    assert "shop is not trusted" in refused.problem
    raised = classify(parsed_pod("BestEffort", labels=labels, namespace="trusted"), RULES)
    assert raised.qos is QosClass(word)


def test_sweetpoints_own_label_goes_before_the_other_dialects() -> None:
    labels = {"sweetpoint.dev/qos": "best-effort", "koordinator.sh/qosClass": "LS"}
    assert classify(parsed_pod(labels=labels), RULES).qos is QosClass.BE


def test_dialects_that_contradict_each_other_cancel() -> None:
    found = classify(
        parsed_pod(
            labels={"koordinator.sh/qosClass": "LS"},
            annotations={"katalyst.kubewharf.io/qos_level": "reclaimed_cores"},
        ),
        RULES,
    )
    assert found.qos is QosClass.LS
    assert found.rule == "Kubernetes QoS class Burstable"
    assert found.problem is not None
    assert "contradict" in found.problem


def test_an_unknown_value_of_a_label_is_reported_and_ignored() -> None:
    found = classify(parsed_pod("BestEffort", labels={"koordinator.sh/qosClass": "LSX"}), RULES)
    assert found.qos is QosClass.BE
    assert found.problem is not None
    assert "'LSX'" in found.problem


def test_pods_that_run_the_node_are_system_whatever_their_labels() -> None:
    labels = {"sweetpoint.dev/qos": "best-effort", "koordinator.sh/qosClass": "BE"}
    critical = raw_running_pod(labels=labels)
    critical["spec"]["priority"] = 2_000_000_000  # system-cluster-critical
    mirror = {"kubernetes.io/config.mirror": "f" * 32, "kubernetes.io/config.hash": "f" * 32}
    for each in (
        parse_pod(critical),
        parsed_pod("BestEffort", labels=labels, namespace="kube-system"),
        parsed_pod("BestEffort", labels=labels, annotations=mirror),
        parsed_pod("BestEffort", labels=labels, uid=RULES.own_uid),
    ):
        assert classify(each, RULES).qos is QosClass.SYSTEM


def test_a_pod_that_claims_to_be_static_keeps_its_class() -> None:
    claims = {"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": "f" * 32}
    found = classify(parsed_pod("BestEffort", annotations=claims), RULES)
    assert found.qos is QosClass.BE


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({}, None),
        ({5: -998}, None),  # the sandbox alone
        ({5: 0}, None),  # the same, of a runtime that cannot lower it
        ({5: 0, 6: -997}, QosClass.SYSTEM),
        ({5: -998, 6: 1000}, QosClass.BE),
        ({5: -998, 6: -997}, QosClass.SYSTEM),
        ({0: 0}, None),  # of another PID namespace
    ],
)
def test_best_effort_by_its_cgroup(
    tmp_path: Path, scores: dict[int, int], expected: QosClass | None
) -> None:
    path = tmp_path / "kubepods" / "besteffort" / f"pod{UID}"
    for pid, score in scores.items():
        container = path / f"c{pid}"
        container.mkdir(parents=True)
        (container / "cgroup.procs").write_text(f"{pid}\n")
        if pid:
            (tmp_path / "proc" / str(pid)).mkdir(parents=True)
            (tmp_path / "proc" / str(pid) / "oom_score_adj").write_text(f"{score}\n")
    cgroup = PodCgroup(UID, f"/kubepods/besteffort/pod{UID}", 1, "BestEffort")
    found = classify_by_cgroup(cgroup, tmp_path, tmp_path / "proc")
    assert (None if found is None else found.qos) is expected


@pytest.mark.parametrize(("depth", "expected"), [(200, QosClass.BE), (400, None)])
def test_the_search_of_a_pod_is_bounded(
    tmp_path: Path, depth: int, expected: QosClass | None
) -> None:
    pod_path = f"/kubepods/besteffort/pod{UID}"
    deepest = tmp_path / pod_path[1:] / Path(*["c"] * depth)
    deepest.mkdir(parents=True)
    (deepest / "cgroup.procs").write_text("7\n")
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/oom_score_adj").write_text("1000\n")
    cgroup = PodCgroup(UID, pod_path, 1, "BestEffort")
    found = classify_by_cgroup(cgroup, tmp_path, tmp_path / "proc")
    assert (None if found is None else found.qos) is expected
