# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Scans of a tree of directories that looks like cgroups: what is found, waits and is left out."""

from pathlib import Path

import pytest

from controller.agent.workload_scanner import WorkloadScanner
from controller.config.load import Config, load
from controller.core.model import QosClass
from controller.host.facts import CgroupLayout


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "config.yaml"
    file.write_text(
        "workloads:\n"
        "- {name: web, cgroup: /web, class: latency-sensitive}\n"
        "- {name: batch, cgroup: /batch/*, class: best-effort}\n"
    )
    return load(file, cpus=4)


@pytest.fixture
def layout(tmp_path: Path) -> CgroupLayout:
    (tmp_path / "tree" / "batch").mkdir(parents=True)
    return CgroupLayout(hierarchy="cpu", mount=tmp_path / "tree", version="v1", unified=None)


def make_batch(layout: CgroupLayout, first: int, last: int) -> None:
    for number in range(first, last):
        (layout.mount / "batch" / f"job{number:03}").mkdir()


def test_a_service_that_comes_later_is_missed_and_told_once(
    layout: CgroupLayout, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    scanner = WorkloadScanner(layout)
    assert scanner.first(config) == ()
    (missing,) = scanner.missing
    assert missing.endswith(f"config.yaml:2: cgroup: /web does not exist below {layout.mount}")
    scanner.scan(config, None, changes=1)
    assert [each.message for each in caplog.records] == [f"{missing}; left out until it does"]
    (layout.mount / "web").mkdir()
    assert [each.name for each in scanner.scan(config, None, changes=2)] == ["web"]
    assert scanner.missing == ()
    (layout.mount / "web").rmdir()
    assert scanner.scan(config, None, changes=3) == ()
    assert len(caplog.records) == 2


def test_most_of_many_new_workloads_wait_for_later_scans(
    layout: CgroupLayout, config: Config
) -> None:
    (layout.mount / "web").mkdir()
    scanner = WorkloadScanner(layout)
    assert [each.name for each in scanner.first(config)] == ["web"]
    make_batch(layout, 0, 200)
    found = scanner.scan(config, None, changes=1)
    assert len(found) == 1 + 128
    assert scanner.waiting_counts == {QosClass.BE: 72}
    assert scanner.waiting.keys().isdisjoint(each.cgroup for each in found)
    assert scanner.has_changed(1)
    assert len(scanner.scan(config, None, changes=1)) == 1 + 200
    assert not scanner.has_changed(1)
    assert scanner.has_changed(2)
    assert scanner.has_changed(None)  # not counted
