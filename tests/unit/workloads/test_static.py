# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Workloads from rules of the configuration, on a tree of real directories."""

from collections.abc import Iterator
import os
from pathlib import Path

import pytest

from controller.config.load import ConfigError, WorkloadRule
from controller.core.model import QosClass, Workload
from controller.host.facts import CgroupLayout
from controller.host.own_cgroup import OWN_CGROUP
from controller.workloads.static import ConfiguredWorkloads, scan


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
    found, _ = scan(layout, [rule("web", "/web"), rule("b", "/batch/*")], strict=True)
    assert [(w.name, w.path) for w in found] == [
        ("b:one", "/batch/one"),
        ("b:two", "/batch/two"),
        ("web", "/web"),
    ]
    assert found[2].cgroup == ("cpu", (layout.mount / "web").stat().st_ino)


def test_a_pattern_does_not_match_the_agent_s_own_cgroup(layout: CgroupLayout) -> None:
    (layout.mount / OWN_CGROUP).mkdir()
    found, _ = scan(layout, [rule("any", "/*")], strict=True)
    assert [w.path for w in found] == ["/batch", "/other", "/web"]


def test_a_name_that_is_not_utf8_becomes_printable(layout: CgroupLayout) -> None:
    folder = os.fsencode(layout.mount / "batch") + b"/\xff\xfe\x80bad"
    os.mkdir(folder)
    found, problems = scan(layout, [rule("b", "/batch/*bad")], strict=True)
    assert [(w.name, problems) for w in found] == [(r"b:\xff\xfe\x80bad", ())]
    # The path stays the one that opens the cgroup.
    assert (layout.mount / found[0].path[1:]).stat().st_ino == os.stat(folder).st_ino


def test_patterns_in_the_middle(layout: CgroupLayout) -> None:
    found, _ = scan(layout, [rule("any", "/b*/t?o/[a-z]*")], strict=True)
    assert [w.path for w in found] == ["/batch/two/inner"]


def test_a_pattern_may_match_nothing_but_a_path_must_exist_at_start(layout: CgroupLayout) -> None:
    assert scan(layout, [rule("none", "/nothing*")], strict=True) == ((), ())
    with pytest.raises(ConfigError, match=r"config\.yaml:9: cgroup: /nothing does not exist"):
        scan(layout, [rule("none", "/nothing")], strict=True)
    assert scan(layout, [rule("none", "/nothing")], strict=False) == ((), ())


def test_a_file_is_not_a_cgroup(layout: CgroupLayout) -> None:
    with pytest.raises(ConfigError, match="/batch/tasks does not exist"):
        scan(layout, [rule("odd", "/batch/tasks")], strict=True)


def names(found: tuple[tuple[Workload, ...], tuple[str, ...]]) -> list[str]:
    return [workload.name for workload in found[0]]


def test_one_cgroup_has_one_workload(layout: CgroupLayout) -> None:
    rules = [rule("all", "/batch/*"), rule("one", "/batch/one"), rule("web", "/web")]
    text = "/batch/one already belongs to the workload 'all'"
    with pytest.raises(ConfigError, match=text):
        scan(layout, rules, strict=True)
    found = scan(layout, rules, strict=False)
    assert names(found) == ["all:one", "all:two", "web"]
    assert [text in each for each in found[1]] == [True]
    # A user with the right to make cgroups can let one match two patterns, also before the start.
    patterns = [rule("all", "/batch/*"), rule("ones", "/*/one"), rule("web", "/web")]
    assert scan(layout, patterns, strict=True)[0] == found[0]


def test_a_workload_inside_another_is_left_out(layout: CgroupLayout) -> None:
    rules = [rule("inner", "/batch/two/inner", QosClass.LS), rule("outer", "/batch")]
    text = "/batch/two/inner lies inside /batch of the workload 'outer'"
    with pytest.raises(ConfigError, match=text):
        scan(layout, rules, strict=True)
    found = scan(layout, [*rules, rule("web", "/web")], strict=False)
    assert names(found) == ["outer", "web"]
    assert [text in each for each in found[1]] == [True]


def test_a_cgroup_that_a_user_makes_below_a_workload_hides_no_service(layout: CgroupLayout) -> None:
    rules = [rule("be", "/batch/*"), rule("deep", "/*/*/inner"), rule("svc", "/other/*")]
    assert names(found := scan(layout, rules, strict=True)) == ["be:one", "be:two", "svc:x"]
    assert ["/batch/two/inner lies inside" in each for each in found[1]] == [True]
    (layout.mount / "other" / "new").mkdir()
    assert "svc:new" in names(scan(layout, rules, strict=False))


@pytest.fixture
def v2(layout: CgroupLayout) -> CgroupLayout:
    for name in ("web", "batch/one", "batch/two"):
        (layout.mount / name / "cpu.max").write_text("max 100000")
    return CgroupLayout(hierarchy="v2", mount=layout.mount, version="v2", unified=layout.mount)


def test_v2_needs_the_cpu_controller(v2: CgroupLayout) -> None:
    assert names(scan(v2, [rule("web", "/web")], strict=True)) == ["web"]
    (v2.mount / "web" / "cpu.max").unlink()
    with pytest.raises(ConfigError, match="/web has no cpu controller"):
        scan(v2, [rule("web", "/web")], strict=True)


def test_a_cgroup_without_the_cpu_controller_hides_no_other(v2: CgroupLayout) -> None:
    (v2.mount / "batch" / "bad").mkdir()
    rules = [rule("be", "/batch/*"), rule("web", "/web", QosClass.LS)]
    for strict in (True, False):
        found = scan(v2, rules, strict=strict)
        assert names(found) == ["be:one", "be:two", "web"]
        assert ["/batch/bad has no cpu controller" in each for each in found[1]] == [True]


def test_a_cgroup_that_vanishes_during_the_scan_is_not_reported(v2: CgroupLayout) -> None:
    def rules() -> Iterator[WorkloadRule]:
        yield rule("be", "/batch/*")
        (v2.mount / "batch" / "one" / "cpu.max").unlink()
        (v2.mount / "batch" / "one").rmdir()
        yield rule("web", "/web")

    found = scan(v2, rules(), strict=False)
    assert names(found) == ["be:two", "web"] and found[1] == ()


def test_an_unchanged_workload_is_the_same_object_in_the_next_scan(v2: CgroupLayout) -> None:
    rules = [rule("web", "/web", QosClass.LS), rule("be", "/batch/*")]
    configured = ConfiguredWorkloads(v2)
    before, _ = configured.scan(rules, strict=True)
    assert configured.scan(rules, strict=True)[0] is before
    (v2.mount / "batch" / "three").mkdir()
    (v2.mount / "batch" / "three" / "cpu.max").write_text("max 100000")
    after, _ = configured.scan(rules, strict=True)
    assert names((after, ())) == ["be:one", "be:three", "be:two", "web"]
    assert after[0] is before[0] and after[2:] == before[1:]
    # A cgroup that was made again is another workload, and so is one by another rule.
    (v2.mount / "batch" / "two").rename(v2.mount / "old")
    (v2.mount / "batch" / "two").mkdir()
    (v2.mount / "batch" / "two" / "cpu.max").write_text("max 100000")
    again, _ = configured.scan(rules, strict=True)
    assert again[2].path == before[1].path and again[2].cgroup != before[1].cgroup
    other, _ = configured.scan([rules[0], rule("new", "/batch/*")], strict=True)
    assert names((other, ())) == ["new:one", "new:three", "new:two", "web"]


def test_workloads_that_lose_the_cpu_controller_are_left_out(v2: CgroupLayout) -> None:
    rules = [rule("be", "/batch/*")]
    configured = ConfiguredWorkloads(v2)
    assert len(configured.scan(rules, strict=False)[0]) == 2
    for name in ("one", "two"):
        (v2.mount / "batch" / name / "cpu.max").unlink()
    found, problems = configured.scan(rules, strict=False)
    assert not found and len(problems) == 2
