# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The scan for cgroups of pods: every cgroup driver, and no other directories."""

import os
from pathlib import Path

import pytest

from controller.core.units import NS_PER_SEC
from controller.workloads.pods.cgroups import (
    PodCgroup,
    PodCgroups,
    find_roots,
    kubelet_writes_weight,
    may_own_cpus,
)
from tests.support.needs import needs_root

UID = "0b8d3a52-3f0e-4c6e-9d7a-1f2e3d4c5b6a"
UNDERSCORED = UID.replace("-", "_")
STATIC = "d41d8cd98f00b204e9800998ecf8427e"


def every_pod(cgroups: PodCgroups, now_ns: int) -> list[PodCgroup]:
    return [each for below in cgroups.scan(now_ns).values() for each in below]


def found(mount: Path) -> set[tuple[str, str, str]]:
    return {
        (each.uid, each.qos_class, each.path)
        for each in every_pod(PodCgroups(mount), 0)
        if (mount / each.path[1:]).stat().st_ino == each.inode
    }


@pytest.mark.parametrize(
    ("path", "uid", "qos_class"),
    [
        (f"kubepods/besteffort/pod{UID}", UID, "BestEffort"),
        (f"kubepods/burstable/pod{UID}", UID, "Burstable"),
        (f"kubepods/pod{UID}", UID, "Guaranteed"),
        (f"kubepods/burstable/pod{STATIC}", STATIC, "Burstable"),
        (
            f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice",
            UID,
            "BestEffort",
        ),
        (f"kubepods.slice/kubepods-pod{UNDERSCORED}.slice", UID, "Guaranteed"),
        # metadata.uid of the manifest of a static pod, in any form.
        ("kubepods/burstable/podEtcd.v3:a-b", "Etcd.v3:a-b", "Burstable"),
        ("kubepods/podx", "x", "Guaranteed"),
        (
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podEtcd.v3:a_b.slice",
            "Etcd.v3:a-b",
            "Burstable",
        ),
        (
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
            f"kubelet-kubepods-burstable-pod{UNDERSCORED}.slice",
            UID,
            "Burstable",
        ),
        (f"system.slice/docker-0123.scope/kubelet/kubepods/besteffort/pod{UID}", UID, "BestEffort"),
    ],
)
def test_every_driver(tmp_path: Path, path: str, uid: str, qos_class: str) -> None:
    (tmp_path / path / "container").mkdir(parents=True)
    assert found(tmp_path) == {(uid, qos_class, f"/{path}")}


def test_directories_that_are_no_pods(tmp_path: Path) -> None:
    for path in (
        "kubepods/besteffort/pod",
        "kubepods/besteffort/pod_x",
        f"kubepods/besteffort/pod{'x' * 192}",
        "kubepods/besteffort/kubepods-besteffort-podx",
        f"kubepods/other/pod{UID}",
        f"mykubepods/besteffort/pod{UID}",
        f"pod{UID}",
    ):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "kubepods" / "besteffort" / f"pod{STATIC}").symlink_to(tmp_path)
    assert found(tmp_path) == set()


def test_a_kubepods_inside_a_pod_is_no_root(tmp_path: Path) -> None:
    inside = f"kubepods/besteffort/pod{UID}"
    (tmp_path / inside / "kubepods" / f"pod{STATIC}").mkdir(parents=True)
    assert find_roots(tmp_path) == ("/kubepods",)
    assert found(tmp_path) == {(UID, "BestEffort", f"/{inside}")}


@needs_root("to change the owner of a directory")
def test_a_root_that_another_user_made_is_not_used(tmp_path: Path) -> None:
    delegated = "user.slice/user-1000.slice/user@1000.service/kubepods"
    for root in ("kubepods.slice", delegated):
        (tmp_path / root / f"pod{UID}").mkdir(parents=True)
    os.chown(tmp_path / delegated, 1000, 1000)
    assert find_roots(tmp_path) == ("/kubepods.slice",)
    assert found(tmp_path) == {(UID, "Guaranteed", f"/kubepods.slice/pod{UID}")}


def test_levels_are_listed_after_a_change_and_every_30_s(tmp_path: Path) -> None:
    changes = 1
    cgroups = PodCgroups(tmp_path, ("/kubepods",), lambda: changes)
    (tmp_path / "kubepods").mkdir()
    assert every_pod(cgroups, 0) == every_pod(cgroups, 0) == []
    (tmp_path / f"kubepods/pod{UID}").mkdir()
    assert every_pod(cgroups, 1 * NS_PER_SEC) == []
    changes += 1
    (pod,) = every_pod(cgroups, 2 * NS_PER_SEC)
    assert pod.uid == UID
    (tmp_path / f"kubepods/pod{STATIC}").mkdir()  # the change was reported before it was visible
    assert len(every_pod(cgroups, 3 * NS_PER_SEC)) == 2
    (tmp_path / f"kubepods/pod{STATIC}").rmdir()
    assert len(every_pod(cgroups, 29 * NS_PER_SEC)) == 2
    assert every_pod(cgroups, 30 * NS_PER_SEC) == [pod]


def test_containers_are_listed_once_a_second_after_a_change(tmp_path: Path) -> None:
    changes = 1
    cgroups = PodCgroups(tmp_path, ("/kubepods",), lambda: changes)
    folder = tmp_path / f"kubepods/pod{UID}"
    (folder / "one").mkdir(parents=True)
    (pod,) = every_pod(cgroups, 0)

    def names(now_ns: int) -> set[str]:
        cgroups.scan(now_ns)
        return {name for name, _ in cgroups.containers(pod)}

    assert names(0) == {"one"}
    assert names(40 * NS_PER_SEC) == {"one"}
    (folder / "two").mkdir()
    changes += 1
    assert [names((160 + at) * NS_PER_SEC // 4) for at in range(1, 4)] == [{"one"}] * 3
    # Without a further change, which would be reported.
    assert names(41 * NS_PER_SEC) == {"one", "two"}
    (folder / "one").rmdir()
    changes += 1
    assert names(43 * NS_PER_SEC) == {"two"}


def test_containers_of_new_pods_are_listed_in_every_scan(tmp_path: Path) -> None:
    changes = 0
    cgroups = PodCgroups(tmp_path, ("/kubepods",), lambda: changes)
    uids = [f"{UID[:-2]}{number}" for number in range(10, 30)]
    for uid in uids:
        (tmp_path / f"kubepods/pod{uid}").mkdir(parents=True)
    pods = {pod.uid: pod for pod in every_pod(cgroups, 0)}
    for uid in uids:
        assert cgroups.containers(pods[uid]) == []

    def found(name: str, now_ns: int) -> int:
        """Make a container in each pod; return of how many pods it is listed at once."""
        nonlocal changes
        changes += 1
        for uid in uids:
            (tmp_path / f"kubepods/pod{uid}" / name).mkdir()
        cgroups.scan(now_ns)
        return sum(name in dict(cgroups.containers(pods[uid])) for uid in uids)

    assert found("sandbox", NS_PER_SEC) == 20, "that of each second"
    assert found("one", NS_PER_SEC + 1) == 16, "the last ones"
    assert found("two", 29 * NS_PER_SEC) == 20
    assert found("three", 29 * NS_PER_SEC + 1) == 16
    assert found("four", 30 * NS_PER_SEC) == 20
    assert found("five", 30 * NS_PER_SEC + 1) == 0, "they are no longer new"


def test_containers_of_a_pod_that_is_told_are_listed_at_once(tmp_path: Path) -> None:
    cgroups = PodCgroups(tmp_path, ("/kubepods",), lambda: 1)
    uids = (UID, STATIC)
    for uid in uids:
        (tmp_path / f"kubepods/pod{uid}/one").mkdir(parents=True)
    pods = {pod.uid: pod for pod in every_pod(cgroups, 0)}
    assert [len(cgroups.containers(pods[uid])) for uid in uids] == [1, 1]
    late_ns = 40 * NS_PER_SEC
    cgroups.scan(late_ns)
    for uid in uids:
        (tmp_path / f"kubepods/pod{uid}/two").mkdir()
    assert cgroups.scan(late_ns + 1) is cgroups.scan(late_ns + 2)
    cgroups.scan(late_ns + 3, [UID])
    assert [len(cgroups.containers(pods[uid])) for uid in uids] == [2, 1]


@pytest.mark.parametrize(
    ("path", "writes"),
    [
        ("/batch/one", None),
        ("/kind/node", None),
        ("/kubepods", True),
        ("/kubepods/besteffort", True),
        (f"/kubepods/besteffort/pod{UID}", False),
        (f"/kubepods/besteffort/pod{UID}/main", True),
        (f"/kubepods/burstable/pod{UID}", True),
        (f"/kubepods/pod{UID}", True),
        ("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice", True),
        (
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice",
            False,
        ),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice",
            True,
        ),
        (f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice", True),
    ],
)
def test_weights_that_kubelet_writes(path: str, writes: bool | None) -> None:
    assert kubelet_writes_weight(path) is writes


@pytest.mark.parametrize(
    ("path", "may_own"),
    [
        ("/batch/one", False),
        ("/kubepods", False),
        (f"/kubepods/besteffort/pod{UID}/main", False),
        (f"/kubepods/burstable/pod{UID}", False),
        (f"/kubepods/pod{UID}", True),
        (f"/kubepods/pod{UID}/main", True),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice",
            False,
        ),
        (f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice", True),
    ],
)
def test_only_guaranteed_pods_may_have_cpus_of_their_own(path: str, may_own: bool) -> None:
    assert may_own_cpus(path) is may_own


def test_no_kubepods_is_no_error(tmp_path: Path) -> None:
    assert find_roots(tmp_path) == ()
    assert every_pod(PodCgroups(tmp_path), 0) == []
    assert every_pod(PodCgroups(tmp_path, ("/kubepods",)), 0) == []


def test_an_unchanged_result_is_the_same_object(tmp_path: Path) -> None:
    pods = tmp_path / "kubepods" / "besteffort"
    (pods / f"pod{UID}").mkdir(parents=True)
    cgroups = PodCgroups(tmp_path)
    before = cgroups.scan(0)
    assert cgroups.scan(NS_PER_SEC) is before
    (pods / f"pod{STATIC}").mkdir()
    after = cgroups.scan(2 * NS_PER_SEC)
    assert {each.uid for each in after["/kubepods"]} == {UID, STATIC}
    (pods / f"pod{STATIC}").rmdir()
    assert cgroups.scan(3 * NS_PER_SEC) == before


def test_a_new_cgroup_at_the_same_path_is_another_one(tmp_path: Path) -> None:
    pods = tmp_path / "kubepods" / "besteffort"
    (pods / f"pod{UID}").mkdir(parents=True)
    cgroups = PodCgroups(tmp_path)
    (before,) = every_pod(cgroups, 0)
    (pods / f"pod{UID}").rename(tmp_path / "gone")
    (pods / f"pod{UID}").mkdir()
    (after,) = every_pod(cgroups, NS_PER_SEC)
    assert (after.path, after.uid) == (before.path, before.uid)
    assert after.inode != before.inode


def test_kubelet_may_start_later_and_change_its_root(tmp_path: Path) -> None:
    cgroups = PodCgroups(tmp_path)
    assert every_pod(cgroups, 0) == []
    (tmp_path / "kubepods" / f"pod{UID}").mkdir(parents=True)
    assert len(every_pod(cgroups, 2 * NS_PER_SEC)) == 1
    (tmp_path / "kubepods" / f"pod{UID}").rmdir()
    (tmp_path / "kubepods").rmdir()
    (tmp_path / "kubepods.slice" / f"kubepods-pod{UNDERSCORED}.slice").mkdir(parents=True)
    (moved,) = every_pod(cgroups, 60 * NS_PER_SEC)
    assert moved.path.startswith("/kubepods.slice/")


def test_given_roots_are_the_only_ones(tmp_path: Path) -> None:
    for root in ("kubepods", "outer/kubepods"):
        (tmp_path / root / f"pod{UID}").mkdir(parents=True)
    assert [each.path for each in every_pod(PodCgroups(tmp_path, ("/outer/kubepods",)), 0)] == [
        f"/outer/kubepods/pod{UID}"
    ]
