# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Parsing of pods as the API server sends them: what is kept, and what is refused."""

from typing import Any

import pytest

from controller.workloads.pods.pod import Owner, PodError, parse_pod
from tests.support.kube.pods import UID, parsed_pod, raw_running_pod


def test_what_is_kept() -> None:
    owner = {"kind": "ReplicaSet", "name": "web-7c9", "controller": True}
    labels = {"app": "web", "koordinator.sh/qosClass": "LS", "something/else": "x"}
    kept = parsed_pod(labels=labels, ownerReferences=[owner])
    assert kept.key == "shop/web-7c9-x2x"
    assert kept.uid == UID
    assert kept.labels == {"app": "web", "koordinator.sh/qosClass": "LS"}
    assert kept.owner == Owner(kind="ReplicaSet", name="web-7c9")
    assert kept.service_account == "web"
    assert not (kept.finished or kept.terminating or kept.mirror)


@pytest.mark.parametrize("static", ["ab" * 16, UID.replace("0", "1"), "Etcd.v3:a-b"])
def test_the_mirror_of_a_static_pod_has_its_id(static: str) -> None:
    marks = {"kubernetes.io/config.mirror": static, "kubernetes.io/config.hash": static}
    found = parsed_pod(annotations=marks)
    assert (found.uid, found.mirror) == (static, True)


def test_the_ids_of_containers_are_kept() -> None:
    raw = raw_running_pod()
    raw["status"]["initContainerStatuses"] = [
        {"containerID": "cri-o://ef"},
        {"containerID": "containerd://../up"},
        {"containerID": "bare"},
        {"containerID": 7},
        {},
    ]
    raw["status"]["ephemeralContainerStatuses"] = [{"containerID": f"docker://{'01' * 32}"}]
    assert parse_pod(raw).containers == ("01" * 32, "ab" * 32, "cd" * 32, "ef")


def test_the_end_of_a_container_does_not_change_the_parsed_pod() -> None:
    before, after = raw_running_pod(), raw_running_pod()
    after["status"]["containerStatuses"][0]["state"] = {"terminated": {}}
    assert parse_pod(before) == parse_pod(after)


@pytest.mark.parametrize(
    "changes",
    [
        {"uid": "../../etc"},
        {"uid": None},
        {"uid": "ab" * 16},  # the form of a static pod's uid
        {"name": "../up"},
        {"name": "a" * 254},
        {"name": "nul\0"},
        {"namespace": "a/b"},
        {"namespace": ["a"]},
        {"annotations": {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "../x"}},
        {"annotations": {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "a_b"}},
        {"annotations": {"kubernetes.io/config.mirror": "x"}},
    ],
)
def test_a_pod_without_a_valid_identity_is_refused_in_one_line(changes: dict[str, Any]) -> None:
    with pytest.raises(PodError) as caught:
        parse_pod(raw_running_pod(**changes))
    assert "\n" not in str(caught.value)
    assert "\0" not in str(caught.value)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("raw", [{}, {"metadata": []}, {"metadata": {"name": {}}}, {"spec": "x"}])
def test_an_object_that_is_no_pod_is_refused(raw: Any) -> None:
    with pytest.raises(PodError):
        parse_pod(raw)


def test_a_long_annotation_is_dropped_and_named() -> None:
    key = "katalyst.kubewharf.io/qos_level"
    kept = parsed_pod(annotations={key: "x" * 200_000, "note": "y" * 200_000})
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
def test_the_qos_class_of_a_pod_whose_status_has_none_yet(
    resources: list[dict[str, Any]], expected: str
) -> None:
    raw = raw_running_pod()
    del raw["status"]["qosClass"]
    raw["spec"]["containers"] = [{"resources": each} for each in resources]
    assert parse_pod(raw).qos_class == expected


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("fd00:0::7", "fd00::7"),
        ("127.0.0.1", ""),
        ("169.254.169.254", ""),
        ("224.0.0.1", ""),
        ("0.0.0.0", ""),
        ("10.0.0.7:80@example.org", ""),
        (7, ""),
        (None, ""),
    ],
)
def test_an_address_is_one_that_a_pod_can_have(given: object, kept: str) -> None:
    assert parse_pod({**raw_running_pod(), "status": {"podIP": given}}).ip == kept


def test_the_key_of_the_images_changes_with_the_tag_and_not_with_the_order() -> None:
    def key(*images: object) -> str:
        containers = [{"name": f"c{n}", "image": image} for n, image in enumerate(images)]
        raw = raw_running_pod()
        raw["spec"]["containers"] = containers
        return parse_pod(raw).image_key

    assert key("web:1", "sidecar:1") == key("sidecar:1", "web:1")
    assert len({key("web:1"), key("web:2"), key("web:1", "web:1"), key("registry/web:1")}) == 4
    assert key() == key(None, 5) == ""
    assert len(key("x" * 10**6, "\ud800")) == 16
