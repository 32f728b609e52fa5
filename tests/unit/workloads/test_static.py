# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Workloads from rules of the configuration, on a tree of real directories."""

from pathlib import Path

import pytest

from controller.config.load import ConfigError, WorkloadRule
from controller.core.model import QosClass
from controller.host.facts import CgroupLayout
from controller.workloads.static import scan


def rule(name: str, cgroup: str, qos: QosClass = QosClass.BE) -> WorkloadRule:
    return WorkloadRule(
        name=name, cgroup=cgroup, qos=qos, service=name, profile="", origin="config.yaml:9"
    )


@pytest.fixture
def layout(tmp_path: Path) -> CgroupLayout:
    for name in ("web", "batch/one", "batch/two", "batch/two/inner", "other/x"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "batch" / "tasks").write_text("")
    return CgroupLayout(hierarchy="cpu", mount=tmp_path, version="v1", unified=None)


def test_patterns_match_one_level_each_and_only_directories(layout: CgroupLayout) -> None:
    found = scan(layout, [rule("web", "/web"), rule("b", "/batch/*")], missing_ok=False)
    assert [(w.name, w.path) for w in found] == [
        ("b:one", "/batch/one"),
        ("b:two", "/batch/two"),
        ("web", "/web"),
    ]
    assert found[2].cgroup == ("cpu", (layout.mount / "web").stat().st_ino)


def test_patterns_in_the_middle(layout: CgroupLayout) -> None:
    found = scan(layout, [rule("any", "/b*/t?o/[a-z]*")], missing_ok=False)
    assert [w.path for w in found] == ["/batch/two/inner"]


def test_a_pattern_may_match_nothing_but_a_path_must_exist(layout: CgroupLayout) -> None:
    assert scan(layout, [rule("none", "/nothing*")], missing_ok=False) == ()
    with pytest.raises(ConfigError, match=r"config\.yaml:9: cgroup: /nothing does not exist"):
        scan(layout, [rule("none", "/nothing")], missing_ok=False)
    assert scan(layout, [rule("none", "/nothing")], missing_ok=True) == ()


def test_a_file_is_not_a_cgroup(layout: CgroupLayout) -> None:
    with pytest.raises(ConfigError, match="/batch/tasks does not exist"):
        scan(layout, [rule("odd", "/batch/tasks")], missing_ok=False)


def test_one_cgroup_has_one_workload(layout: CgroupLayout) -> None:
    rules = [rule("all", "/batch/*"), rule("one", "/batch/one")]
    with pytest.raises(ConfigError, match="/batch/one already belongs to the workload 'all'"):
        scan(layout, rules, missing_ok=True)


def test_a_workload_inside_another_is_refused(layout: CgroupLayout) -> None:
    rules = [rule("outer", "/batch"), rule("inner", "/batch/two/inner", QosClass.LS)]
    with pytest.raises(ConfigError, match="/batch/two/inner lies inside /batch of the workload"):
        scan(layout, rules, missing_ok=True)


def test_v2_needs_the_cpu_controller(layout: CgroupLayout) -> None:
    v2 = CgroupLayout(hierarchy="v2", mount=layout.mount, version="v2", unified=layout.mount)
    with pytest.raises(ConfigError, match="/web has no cpu controller"):
        scan(v2, [rule("web", "/web")], missing_ok=True)
    (layout.mount / "web" / "cpu.max").write_text("max 100000")
    assert len(scan(v2, [rule("web", "/web")], missing_ok=True)) == 1
