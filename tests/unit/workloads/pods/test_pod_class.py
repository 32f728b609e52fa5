# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The class of a pod for caches or for disks: its annotation, Koordinator's class, none."""

from dataclasses import replace

import pytest

from controller.config.sections.io import IoClassConfig
from controller.config.sections.resctrl import ResctrlClass
from controller.core.model import QosClass
from controller.workloads.pods.pod import Pod
from controller.workloads.pods.pod_class import FOR_CACHES, FOR_DISKS, choose_class

FOR_POD = "rdt.resources.beta.kubernetes.io/pod"
GOLD = ResctrlClass("gold", 0, 1, 1, annotation=True)
LSR = ResctrlClass("lsr", 0, 1, 1, frozenset({"LSR", "LSE"}))
LS = ResctrlClass("ls", 0, 0.5, 1, frozenset({"LS"}))
CLASSES = (GOLD, LSR, LS)


def pod(qos_class: str = "Burstable", label: str = "", wanted: str = "") -> Pod:
    return Pod(
        uid="u",
        namespace="shop",
        name="web",
        qos_class=qos_class,
        priority=0,
        labels={"koordinator.sh/qosClass": label} if label else {},
        annotations={FOR_POD: wanted} if wanted else {},
    )


@pytest.mark.parametrize(
    ("given", "qos", "expected"),
    [
        (pod(label="LSR", wanted="gold"), QosClass.LS, "gold"),
        (pod(label="LSE"), QosClass.LS, "lsr"),
        (pod("Guaranteed", "LS"), QosClass.LS, "ls"),
        (pod("Guaranteed"), QosClass.LS, "lsr"),
        (pod(), QosClass.LS, "ls"),
        (pod(label="SYSTEM"), QosClass.SYSTEM, ""),
        (pod("Guaranteed"), QosClass.SYSTEM, ""),
        (pod("BestEffort", "BE"), QosClass.BE, ""),
    ],
)
def test_the_first_statement_about_the_pod_counts(given: Pod, qos: QosClass, expected: str) -> None:
    assert choose_class(given, qos, CLASSES, FOR_CACHES) == (expected, None)


@pytest.mark.parametrize(
    ("annotations", "qos", "expected", "problem"),
    [
        (
            {FOR_POD: "lsr"},
            QosClass.LS,
            "ls",
            "'lsr' is no class that pods may choose (these: gold",
        ),
        ({FOR_POD: "x" * 99}, QosClass.LS, "ls", f"={'x' * 64!r} is no class"),
        ({FOR_POD: "gold"}, QosClass.BE, "", "best-effort work has no class"),
        (
            {"rdt.resources.beta.kubernetes.io/container.a": "gold"},
            QosClass.LS,
            "ls",
            "container.*: only rdt.resources.beta.kubernetes.io/pod is followed",
        ),
    ],
)
def test_an_annotation_that_is_not_followed_is_a_problem(
    annotations: dict[str, str], qos: QosClass, expected: str, problem: str
) -> None:
    found, text = choose_class(replace(pod(), annotations=annotations), qos, CLASSES, FOR_CACHES)
    assert found == expected
    assert text is not None and problem in text


def test_without_classes_annotations_are_the_runtime_s_business() -> None:
    assert choose_class(pod(wanted="gold"), QosClass.LS, (), FOR_CACHES) == ("", None)


def test_a_class_for_disks_has_an_annotation_of_its_own() -> None:
    bulk = IoClassConfig("gold", weight=20, annotation=True)
    key = "blockio.resources.beta.kubernetes.io/pod"
    chosen = replace(pod(wanted="ls"), annotations={key: "gold"})
    assert choose_class(chosen, QosClass.LS, (bulk,), FOR_DISKS) == ("gold", None)
    found, text = choose_class(
        replace(pod(), annotations={key: "lead"}), QosClass.LS, (bulk,), FOR_DISKS
    )
    assert found == "" and text is not None and text.startswith(f"{key}='lead' is no class")
    assert choose_class(pod(wanted="gold"), QosClass.LS, (bulk,), FOR_DISKS) == ("", None)
