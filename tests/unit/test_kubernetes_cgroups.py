# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pods' cgroups are found for every driver, and nothing else is taken for one."""

from pathlib import Path

import pytest

from controller.workloads.kubernetes.cgroups import find_pod_cgroups, find_roots

UID = "0b8d3a52-3f0e-4c6e-9d7a-1f2e3d4c5b6a"
UNDERSCORED = UID.replace("-", "_")
STATIC = "d41d8cd98f00b204e9800998ecf8427e"


def found(mount: Path) -> set[tuple[str, str, str]]:
    return {
        (each.uid, each.qos_class, each.path)
        for each in find_pod_cgroups(mount, find_roots(mount))
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


def test_what_is_no_pod(tmp_path: Path) -> None:
    for path in (
        "kubepods/besteffort/podx",
        f"kubepods/besteffort/pod{UID}0",
        f"kubepods/other/pod{UID}",
        f"mykubepods/besteffort/pod{UID}",
        f"pod{UID}",
    ):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "kubepods" / "besteffort" / f"pod{STATIC}").symlink_to(tmp_path)
    assert found(tmp_path) == set()


def test_a_tree_that_a_pod_makes_in_itself_is_no_root(tmp_path: Path) -> None:
    inside = f"kubepods/besteffort/pod{UID}"
    (tmp_path / inside / "kubepods" / f"pod{STATIC}").mkdir(parents=True)
    assert find_roots(tmp_path) == ("/kubepods",)
    assert found(tmp_path) == {(UID, "BestEffort", f"/{inside}")}


def test_no_kubepods_is_no_error(tmp_path: Path) -> None:
    assert find_roots(tmp_path) == ()
    assert list(find_pod_cgroups(tmp_path, ("/kubepods",))) == []
