# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Configured workloads that are pods or lie in them."""

import pytest

from controller.core.model import CgroupId, QosClass, Workload
from controller.workloads.pods.containers import container_workloads
from controller.workloads.pods.source import merge_with_configured


def workload(name: str, path: str) -> Workload:
    return Workload(name, CgroupId("cpu", hash(path)), path, QosClass.BE, name, "")


@pytest.mark.parametrize("path", ["/kubepods/pod1", "/kubepods", "/kubepods/pod1/inner"])
def test_a_configured_workload_goes_before_a_pod(path: str) -> None:
    ours = workload("ours", path)
    pods = (workload("a/b", "/kubepods/pod1"), workload("c/d", "/other/pod2"))
    kept, conflicts = merge_with_configured((ours,), pods)
    assert kept == (ours, pods[1])
    (conflict,) = conflicts
    assert conflict.startswith("a/b: left to the configured workload 'ours'")


@pytest.mark.parametrize("path", ["/pod1/one", "/pod1", "/pod1/one/inner"])
def test_a_configured_workload_in_a_pod_goes_before_all_its_containers(path: str) -> None:
    # The weight of the pod would be that of the configured workload as well.
    ours, pod = workload("ours", path), workload("a/b", "/pod1")
    containers = container_workloads(pod, ("one", "two"), [("one", 2), ("two", 3)], ())
    kept, (conflict,) = merge_with_configured((ours,), containers)
    assert kept == (ours,)
    assert conflict.startswith("a/b: left to")


def test_neighbours_are_no_conflict() -> None:
    ours, pods = workload("ours", "/kubepods/pod1"), (workload("a/b", "/kubepods/pod10"),)
    assert merge_with_configured((ours,), pods) == ((ours, *pods), ())
