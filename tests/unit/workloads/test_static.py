# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Workloads from rules of the configuration, on a tree of real directories."""

from collections.abc import Iterator
import os
from pathlib import Path

import pytest

from controller.config.load import WorkloadRule
from controller.core.model import QosClass
from controller.host.facts import CgroupLayout
from controller.host.own_cgroup import OWN_CGROUP
from controller.workloads.static import ConfiguredWorkloads, Scan, scan


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
    found = scan(layout, [rule("web", "/web"), rule("b", "/batch/*")])
    assert [(w.name, w.path) for w in found.workloads] == [
        ("b:one", "/batch/one"),
        ("b:two", "/batch/two"),
        ("web", "/web"),
    ]
    assert found.workloads[2].cgroup == ("cpu", (layout.mount / "web").stat().st_ino)


def test_a_pattern_does_not_match_the_agent_s_own_cgroup(layout: CgroupLayout) -> None:
    (layout.mount / OWN_CGROUP).mkdir()
    found = scan(layout, [rule("any", "/*")])
    assert [w.path for w in found.workloads] == ["/batch", "/other", "/web"]


def test_a_name_that_is_not_utf8_becomes_printable(layout: CgroupLayout) -> None:
    folder = os.fsencode(layout.mount / "batch") + b"/\xff\xfe\x80bad"
    os.mkdir(folder)
    found = scan(layout, [rule("b", "/batch/*bad")])
    assert [(w.name, found.left_out) for w in found.workloads] == [(r"b:\xff\xfe\x80bad", ())]
    # The path stays the one that opens the cgroup.
    assert (layout.mount / found.workloads[0].path[1:]).stat().st_ino == os.stat(folder).st_ino


def test_patterns_in_the_middle(layout: CgroupLayout) -> None:
    found = scan(layout, [rule("any", "/b*/t?o/[a-z]*")])
    assert [w.path for w in found.workloads] == ["/batch/two/inner"]


def test_a_pattern_may_match_nothing_and_what_a_rule_names_is_missed(layout: CgroupLayout) -> None:
    assert scan(layout, [rule("none", "/nothing*")]) == ((), (), ())
    rules = [rule("none", "/nothing"), rule("web", "/web")]
    configured = ConfiguredWorkloads(layout)
    found = configured.scan(rules)
    assert names(found) == ["web"]
    missing = f"config.yaml:9: cgroup: /nothing does not exist below {layout.mount}"
    assert found[1:] == ((), (missing,))
    (layout.mount / "nothing").mkdir()
    found = configured.scan(rules)
    assert names(found) == ["none", "web"]
    assert found.missing == ()


def test_a_file_is_not_a_cgroup(layout: CgroupLayout) -> None:
    (text,) = scan(layout, [rule("odd", "/batch/tasks")]).missing
    assert "/batch/tasks does not exist" in text


def names(found: Scan) -> list[str]:
    return [workload.name for workload in found.workloads]


def test_one_cgroup_has_one_workload(layout: CgroupLayout) -> None:
    rules = [rule("all", "/batch/*"), rule("one", "/batch/one"), rule("web", "/web")]
    text = "/batch/one already belongs to the workload 'all'"
    found = scan(layout, rules)
    assert names(found) == ["all:one", "all:two", "web"]
    assert [text in each for each in found[1]] == [True]
    # A user with the right to make cgroups can let one match two patterns, also before the start.
    patterns = [rule("all", "/batch/*"), rule("ones", "/*/one"), rule("web", "/web")]
    assert scan(layout, patterns).workloads == found.workloads


def test_a_workload_inside_another_is_left_out(layout: CgroupLayout) -> None:
    rules = [rule("inner", "/batch/two/inn*", QosClass.LS), rule("outer", "/batch")]
    text = "/batch/two/inner lies inside /batch of the workload 'outer'"
    found = scan(layout, [*rules, rule("web", "/web")])
    assert names(found) == ["outer", "web"]
    assert [text in each for each in found[1]] == [True]


def test_a_cgroup_that_a_user_makes_below_a_workload_hides_no_service(layout: CgroupLayout) -> None:
    rules = [rule("be", "/batch/*"), rule("deep", "/*/*/inner"), rule("svc", "/other/*")]
    assert names(found := scan(layout, rules)) == ["be:one", "be:two", "svc:x"]
    assert ["/batch/two/inner lies inside" in each for each in found[1]] == [True]
    (layout.mount / "other" / "new").mkdir()
    assert "svc:new" in names(scan(layout, rules))


@pytest.fixture
def v2(layout: CgroupLayout) -> CgroupLayout:
    for name in ("web", "batch/one", "batch/two"):
        (layout.mount / name / "cpu.max").write_text("max 100000")
    return CgroupLayout(hierarchy="v2", mount=layout.mount, version="v2", unified=layout.mount)


def test_v2_needs_the_cpu_controller(v2: CgroupLayout) -> None:
    assert names(scan(v2, [rule("web", "/web")])) == ["web"]
    (v2.mount / "web" / "cpu.max").unlink()
    found = scan(v2, [rule("web", "/web")])
    assert names(found) == []
    assert ["/web has no cpu controller" in each for each in found.left_out] == [True]


def test_a_cgroup_without_the_cpu_controller_hides_no_other(v2: CgroupLayout) -> None:
    (v2.mount / "batch" / "bad").mkdir()
    rules = [rule("be", "/batch/*"), rule("web", "/web", QosClass.LS)]
    found = scan(v2, rules)
    assert names(found) == ["be:one", "be:two", "web"]
    assert ["/batch/bad has no cpu controller" in each for each in found.left_out] == [True]


def test_a_cgroup_that_vanishes_during_the_scan_is_not_reported(v2: CgroupLayout) -> None:
    def rules() -> Iterator[WorkloadRule]:
        yield rule("be", "/batch/*")
        (v2.mount / "batch" / "one" / "cpu.max").unlink()
        (v2.mount / "batch" / "one").rmdir()
        yield rule("web", "/web")

    found = scan(v2, rules())
    assert names(found) == ["be:two", "web"] and found[1] == ()


def test_an_unchanged_workload_is_the_same_object_in_the_next_scan(v2: CgroupLayout) -> None:
    rules = [rule("web", "/web", QosClass.LS), rule("be", "/batch/*")]
    configured = ConfiguredWorkloads(v2)
    before = configured.scan(rules).workloads
    assert configured.scan(rules).workloads is before
    (v2.mount / "batch" / "three").mkdir()
    (v2.mount / "batch" / "three" / "cpu.max").write_text("max 100000")
    found = configured.scan(rules)
    after = found.workloads
    assert names(found) == ["be:one", "be:three", "be:two", "web"]
    assert after[0] is before[0] and after[2:] == before[1:]
    # A cgroup that was made again is another workload, and so is one by another rule.
    (v2.mount / "batch" / "two").rename(v2.mount / "old")
    (v2.mount / "batch" / "two").mkdir()
    (v2.mount / "batch" / "two" / "cpu.max").write_text("max 100000")
    again = configured.scan(rules).workloads
    assert again[2].path == before[1].path and again[2].cgroup != before[1].cgroup
    other = configured.scan([rules[0], rule("new", "/batch/*")])
    assert names(other) == ["new:one", "new:three", "new:two", "web"]


def test_workloads_that_lose_the_cpu_controller_are_left_out(v2: CgroupLayout) -> None:
    rules = [rule("be", "/batch/*")]
    configured = ConfiguredWorkloads(v2)
    assert len(configured.scan(rules).workloads) == 2
    for name in ("one", "two"):
        (v2.mount / "batch" / name / "cpu.max").unlink()
    found = configured.scan(rules)
    assert not found.workloads and len(found.left_out) == 2
