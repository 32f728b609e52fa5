# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``core_scheduling:`` and the groups of workloads."""

from pathlib import Path

import pytest

from controller.config.load import ConfigError, load
from controller.core.settings import CoreMode, CoreSettings
from controller.core.units import NS_PER_SEC

WORKLOADS = """\
workloads:
  - {name: web, cgroup: /web, class: latency-sensitive}
  - {name: batch, cgroup: "/batch/*", class: best-effort, core_group: team-a}
  - {name: more, cgroup: /more, class: best-effort}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_cookies_are_automatic_and_in_one_group_unless_told_otherwise(tmp_path: Path) -> None:
    config = load(write(tmp_path, WORKLOADS), cpus=4)
    assert config.settings.core == CoreSettings(CoreMode.AUTO, 0.1, 30 * NS_PER_SEC)
    assert [rule.core_group for rule in config.workloads] == ["", "team-a", ""]


@pytest.mark.parametrize("mode", ["off", "auto", "on"])
def test_modes_and_thresholds(tmp_path: Path, mode: str) -> None:
    section = f"core_scheduling: {{mode: {mode}, overlap: 25%, verify: 1m}}\n"
    config = load(write(tmp_path, section + WORKLOADS), cpus=4)
    assert config.settings.core == CoreSettings(CoreMode(mode), 0.25, 60 * NS_PER_SEC)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("core_scheduling: {mode: yes}\n", ":1: core_scheduling.mode"),
        ("core_scheduling: {overlap: 2}\n", "core_scheduling.overlap"),
        ("core_scheduling: {verify: 1s}\n", "core_scheduling.verify"),
    ],
)
def test_wrong_sections(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(write(tmp_path, change + WORKLOADS), cpus=4)


@pytest.mark.parametrize("group", ["a b", "../x", "''", "-x"])
def test_wrong_groups(tmp_path: Path, group: str) -> None:
    with pytest.raises(ConfigError, match="core_group"):
        load(write(tmp_path, WORKLOADS.replace("team-a", group)), cpus=4)


def test_a_service_has_no_group(tmp_path: Path) -> None:
    text = WORKLOADS.replace("sensitive}", "sensitive, core_group: team-a}")
    with pytest.raises(ConfigError, match="only a best-effort workload has a core_group"):
        load(write(tmp_path, text), cpus=4)
