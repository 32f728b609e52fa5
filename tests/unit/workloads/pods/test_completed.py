# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Best-effort pods that completed: counted once, whichever of cgroup and status goes first."""

from dataclasses import replace
import shutil

import pytest

from controller.workloads.pods.pod import Pod
from tests.unit.workloads.pods.fake_node import Node, pod

JOB = pod(1, "BestEffort")
DONE = replace(JOB, finished=True, succeeded=True)
FAILED = replace(JOB, finished=True)


def remove(node: Node, of: Pod) -> None:
    (cgroup,) = node.mount.rglob(f"pod{of.uid}")
    shutil.rmtree(cgroup)


@pytest.mark.parametrize(("end", "count"), [(DONE, 1), (FAILED, 0), (None, 0)])
@pytest.mark.parametrize("cgroup_first", [False, True])
def test_each_end_counts_once(node: Node, end: Pod | None, count: int, cgroup_first: bool) -> None:
    node.run(JOB)
    for cgroup in (True, False) if cgroup_first else (False, True):
        if cgroup:
            remove(node, JOB)
        else:
            node.list(*filter(None, [end]))
        node.scan()
    assert node.source.completed == count
    node.list(replace(DONE, ip="10.0.0.1"))
    node.scan()
    assert node.source.completed == count


def test_pods_that_had_ended_before_and_services_do_not_count(node: Node) -> None:
    service = pod(2)
    node.run(DONE, service)
    node.list(DONE, replace(service, finished=True, succeeded=True))
    node.scan()
    assert node.source.completed == 0
