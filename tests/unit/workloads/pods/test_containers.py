# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0

import pytest

from controller.core.model import CgroupId, QosClass, Workload
from controller.workloads.pods.containers import container_workloads

POD = Workload("shop/p1", CgroupId("cpu", 1), "/kubepods/pod1", QosClass.BE, "shop/p1", "")


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("0123456789ab" + "c" * 52, "0123456789ab"),
        ("cri-containerd-0123456789ab" + "c" * 52 + ".scope", "0123456789ab"),
        ("crio-0123456789ab" + "c" * 52 + ".scope", "0123456789ab"),
        ("main", "main"),
        ("\udcff", "\\xff"),
    ],
)
def test_a_container_is_named_by_its_id(folder: str, name: str) -> None:
    (found,) = container_workloads(POD, [(folder, 2)], ())
    assert found.name == f"shop/p1/{name}"
    assert found.path == f"/kubepods/pod1/{folder}"


def test_an_unchanged_container_stays_the_same_object() -> None:
    one, two = before = container_workloads(POD, [("one", 2), ("two", 3)], ())
    assert container_workloads(POD, [("two", 3), ("one", 2)], before) == (two, one)
    after = container_workloads(POD, [("one", 2), ("two", 4)], before)
    assert after[0] is one
    assert after[1] == two._replace(cgroup=CgroupId("cpu", 4))
