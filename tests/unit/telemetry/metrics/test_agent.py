# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Metric families of the agent itself."""

from controller.telemetry.metrics.agent import agent_families
from controller.telemetry.report import PublishedState
from tests.support.reports import report


def test_cgroups_that_are_left_out_are_counted_and_the_first_are_named() -> None:
    left_out = tuple(f"config.yaml:3: cgroup: /batch/{number}" for number in range(150))
    found = report(0, left_out=left_out)
    values = {family.name: [s.value for s in family.samples] for family in agent_families(found)}
    assert values["sweetpoint_left_out_cgroups"] == [150.0]
    assert dict(PublishedState(report=found).status())["left_out"] == left_out[:100]


def test_cgroups_that_do_not_exist_are_counted_and_the_first_are_named() -> None:
    missing = tuple(f"config.yaml:3: cgroup: /batch/{number}" for number in range(150))
    found = report(0, missing=missing)
    values = {family.name: [s.value for s in family.samples] for family in agent_families(found)}
    assert values["sweetpoint_missing_cgroups"] == [150.0]
    assert dict(PublishedState(report=found).status())["missing"] == missing[:100]
