# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The facts about knobs in cgroup files, on made-up cgroup trees."""

from pathlib import Path
from typing import Literal

import pytest

from controller.doctor import knobs
from controller.doctor.fact import Fact
from controller.host.facts import CgroupLayout
from controller.host.memory import MemoryHierarchy


def found(
    mount: Path, monkeypatch: pytest.MonkeyPatch, version: Literal["v1", "v2"] = "v2"
) -> dict[str, Fact]:
    layout = CgroupLayout(hierarchy="v2", mount=mount, version=version, unified=None)
    monkeypatch.setattr(knobs, "find_cgroup_layout", lambda: layout)
    return {fact.name: fact for fact in knobs.find_knobs()}


def make_tree(mount: Path, controllers: str, *files: str) -> Path:
    """Make a v2 root with *controllers*, and a cgroup below it with *files*."""
    (mount / "cgroup.controllers").write_text(controllers)
    (mount / "system.slice").mkdir()
    for name in files:
        (mount / "system.slice" / name).touch()
    return mount


@pytest.mark.parametrize(
    ("controllers", "files", "memory", "io"),
    [
        ("cpu memory io", ("memory.current", "memory.high", "io.stat", "io.max"), True, True),
        ("cpu memory io", ("memory.current", "io.stat", "io.weight"), False, True),
        ("cpu memory io", ("memory.current", "io.stat"), False, False),
        ("cpu", ("memory.high", "io.max"), False, False),
    ],
    ids=["all", "weights only", "kernel without them", "no such controllers"],
)
def test_a_knob_is_there_if_its_file_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    controllers: str,
    files: tuple[str, ...],
    memory: bool,
    io: bool,
) -> None:
    facts = found(make_tree(tmp_path, controllers, *files), monkeypatch)
    assert facts["memory.high"].have is memory
    assert facts["io.max, io.weight"].have is io


def test_cgroup_v1_has_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ("memory.current", "memory.high", "io.stat", "io.max")
    facts = found(make_tree(tmp_path, "cpu memory io", *files), monkeypatch, "v1")
    for name in ("memory.high", "io.max, io.weight"):
        assert facts[name].have is False
        assert "cgroup v1" in facts[name].detail


def test_without_a_cgroup_below_the_root_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory io")
    facts = found(tmp_path, monkeypatch)
    assert facts["memory.high"].have is None


@pytest.mark.parametrize(
    ("v1", "controllers", "files", "have"),
    [
        (True, "", (), True),
        (False, "cpu memory", ("memory.current", "memory.max"), True),
        (False, "cpu memory", (), None),
        (False, "cpu", (), False),
    ],
    ids=["v1", "v2", "no cgroup yet", "no controller"],
)
def test_memory_is_limited_in_the_hierarchy_of_its_controller(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    v1: bool,
    controllers: str,
    files: tuple[str, ...],
    have: bool | None,
) -> None:
    make_tree(tmp_path, controllers, *files)
    (tmp_path / "memory.limit_in_bytes").touch()
    memory = MemoryHierarchy("v1" if v1 else "v2", tmp_path)
    monkeypatch.setattr(knobs, "find_memory", lambda unified: memory)
    assert found(tmp_path, monkeypatch)["memory limit"].have is have


@pytest.mark.parametrize(("enabled", "expected"), [("1", "8:0"), ("0", "no disk")])
def test_weights_count_where_the_cost_model_is_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: str, expected: str
) -> None:
    make_tree(tmp_path, "io", "io.stat", "io.weight")
    (tmp_path / "io.cost.qos").write_text(f"8:0 enable={enabled} ctrl=auto\n")
    assert (
        f"weights count on {expected}" in found(tmp_path, monkeypatch)["io.max, io.weight"].detail
    )
