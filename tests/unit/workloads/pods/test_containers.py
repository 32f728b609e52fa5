# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The containers of a pod: which of the cgroups in that of the pod they are, and their names."""

import pytest

from controller.core.model import CgroupId, QosClass, Workload
from controller.workloads.pods.containers import container_workloads

POD = Workload("shop/p1", CgroupId("cpu", 1), "/kubepods/pod1", QosClass.BE, "shop/p1", "")
A, B, SANDBOX = "a" * 64, "b" * 64, "5" * 64
LONG = "0123456789ab" + "c" * 52


def found(ids: tuple[str, ...], *names: str) -> list[str]:
    """Return the names of the cgroups that are containers; *names* are in order of creation."""
    cgroups = [(name, inode) for inode, name in enumerate(names, 2)]
    workloads = container_workloads(POD, ids, cgroups[::-1], ())
    return sorted((each.path.rpartition("/")[2] for each in workloads), key=names.index)


@pytest.mark.parametrize("ids", [(), (LONG,)])
@pytest.mark.parametrize(
    "folder",
    [LONG, f"cri-containerd-{LONG}.scope", f"crio-{LONG}.scope", f"docker-{LONG}.scope"],
)
def test_a_container_is_named_by_its_id(ids: tuple[str, ...], folder: str) -> None:
    (each,) = container_workloads(POD, ids, [(folder, 2)], ())
    assert each.name == "shop/p1/0123456789ab"
    assert each.path == f"/kubepods/pod1/{folder}"


@pytest.mark.parametrize("folder", ["main-1", "vm-main-1.scope"])
def test_an_id_of_any_form_is_known_from_the_status(folder: str) -> None:
    assert found(("main-1",), folder) == [folder]
    assert found((), folder) == []


@pytest.mark.parametrize("ids", [(), (B,), (A, B)])
def test_helpers_of_the_runtime_are_no_containers(ids: tuple[str, ...]) -> None:
    helpers = (f"crio-conmon-{B}", f"crio-conmon-{B}.scope", "init", "kata_overhead", "\udcff")
    assert found(ids, *helpers) == []
    assert found(ids, *helpers, f"crio-{B}") == [f"crio-{B}"]


def test_the_sandbox_is_none_once_a_container_is_in_the_status() -> None:
    assert found((), SANDBOX) == [SANDBOX], "it may be a container"
    assert found((A,), SANDBOX, A) == [A]
    assert found((A, B), SANDBOX, A, B) == [A, B]


def test_a_container_that_the_status_has_not_yet_is_one() -> None:
    assert found((A,), SANDBOX, A, B) == [A, B], "an ephemeral one, or started again"
    assert found((A,), SANDBOX, B) == [SANDBOX, B], "the status has the one before"


def test_an_unchanged_container_stays_the_same_object() -> None:
    one, two = before = container_workloads(POD, (A, B), [(A, 2), (B, 3)], ())
    assert container_workloads(POD, (A, B), [(B, 3), (A, 2)], before) == (two, one)
    after = container_workloads(POD, (A, B), [(A, 2), (B, 4)], before)
    assert after[0] is one
    assert after[1] == two._replace(cgroup=CgroupId("cpu", 4))
