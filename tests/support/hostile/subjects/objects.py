# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Objects of the API server: pod and ServiceProfileDescriptor."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import json
from pathlib import Path
from random import Random
from typing import Any

from controller.core.model import QosClass
from controller.workloads.pods.descriptor import (
    Descriptor,
    DescriptorError,
    derived_profile,
    parse_descriptor,
)
from controller.workloads.pods.pod import Pod, PodError, parse_pod
from controller.workloads.pods.requests import network_limit
from tests.support.hostile.mutations import mutated_bytes, mutated_tree
from tests.support.hostile.subjects.subject import Check, Subject
from tests.support.kube.pods import UID, profiles

__all__ = ("DESCRIPTOR", "POD", "SUBJECTS")

POD: dict[str, Any] = {
    "metadata": {
        "uid": UID,
        "namespace": "shop",
        "name": "web-7c9-x2x",
        "labels": {"app": "web", "sweetpoint.dev/class": "best-effort", "pod-template-hash": "7c9"},
        "annotations": {
            "kubernetes.io/config.hash": "ab" * 16,
            "kubernetes.io/config.mirror": "ab" * 16,
            "koordinator.sh/networkQOS": '{"ingressLimit": "10M", "egressLimit": "20M"}',
        },
        "ownerReferences": [{"controller": True, "kind": "ReplicaSet", "name": "web-7c9"}],
        "deletionTimestamp": None,
    },
    "spec": {
        "priority": 0,
        "serviceAccountName": "web",
        "terminationGracePeriodSeconds": 30,
        "containers": [
            {
                "image": "registry:5000/shop/nginx:1.27@sha256:ab",
                "resources": {
                    "requests": {"cpu": "1", "memory": "1Gi"},
                    "limits": {"cpu": "1", "sweetpoint.dev/cpu": "1500"},
                },
            }
        ],
        "initContainers": [{"restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}],
    },
    "status": {"phase": "Running"},
}
DESCRIPTOR: dict[str, Any] = {
    "metadata": {"namespace": "shop", "name": "web"},
    "spec": {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "systemIndicator": [
            {
                "name": "cpi",
                "indicators": [
                    {"indicatorLevel": "UpperBound", "value": 1.4},
                    {"indicatorLevel": "LowerBound", "value": 1.2},
                ],
            },
            {
                "name": "cpu_sched_wait",
                "indicators": [{"indicatorLevel": "UpperBound", "value": 460}],
            },
            {"name": "cpu_usage_ratio", "indicators": []},
        ],
    },
}


def as_json(random: Random, raw: bytes) -> bytes:
    """Return *raw* with mutated values, or with mutated text if it is not JSON."""
    tree = parsed(raw)
    return (
        mutated_bytes(random, raw)
        if tree is None
        else json.dumps(mutated_tree(random, tree)).encode()
    )


def parsed(raw: bytes) -> Any:
    """Return the value of *raw*; ``None`` if it is not JSON, which the client refuses."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def check_pod(raw: Any) -> None:
    try:
        pod = parse_pod(raw)
    except PodError as error:
        check_line(error)
        return
    assert isinstance(pod, Pod)
    for text in (pod.key, pod.uid, pod.qos_class, pod.service_account, *pod.labels, *pod.images):
        assert text.isprintable()
    limit = network_limit(pod.annotations, QosClass.BE)
    assert limit.problem is None or limit.problem.isprintable()


def check_descriptor(raw: Any) -> None:
    try:
        found = parse_descriptor(raw)
    except DescriptorError as error:
        check_line(error)
        return
    assert isinstance(found, Descriptor)
    profile, problems = derived_profile(profiles("default")["default"], found, 200_000_000)
    for spec in profile.indicators:
        assert spec.sweet_point is not None and 0 < spec.resolution < spec.sweet_point
    assert all(text.isprintable() for text in (*found.problems, *problems))


def check_line(error: Exception) -> None:
    assert str(error).isprintable()
    assert len(str(error)) < 1000


def opener(check: Callable[[Any], None]) -> Callable[[Path], Any]:
    @contextlib.contextmanager
    def open_check(_: Path) -> Iterator[Check]:
        yield lambda raw: check(parsed(raw))

    return open_check


SUBJECTS: Mapping[str, Subject] = {
    "pod": Subject(examples=(json.dumps(POD).encode(),), mutate=as_json, open=opener(check_pod)),
    "descriptor": Subject(
        examples=(json.dumps(DESCRIPTOR).encode(),),
        mutate=as_json,
        open=opener(check_descriptor),
    ),
}
