# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Metric families of the agent itself."""

from controller.agent.agent_end import RESTART_REASONS
from controller.agent.guardian import Heartbeat
from controller.nri.doorbell import DoorbellState
from controller.telemetry.metrics.agent import agent_families
from controller.telemetry.report import PublishedState
from tests.support.reports import report


def test_every_reason_of_a_restart_has_a_series_from_the_start() -> None:
    found = report(0, restarts=Heartbeat(None, {"memory-limit": 2}).restarts)
    (family,) = (f for f in agent_families(found) if f.name == "sweetpoint_agent_restarts")
    counts = {each.labels["reason"]: each.value for each in family.samples}
    assert counts == dict.fromkeys(RESTART_REASONS, 0.0) | {"memory-limit": 2.0}
    assert dict(PublishedState(report=found).status())["restarts"]["memory-limit"] == 2


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


def test_new_containers_that_the_runtime_told_of_are_counted() -> None:
    state = DoorbellState("/var/run/nri/nri.sock", "", in_time=5, late=2)
    found = report(0, doorbell=state)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in agent_families(found)
        for sample in family.samples
    }
    assert samples["sweetpoint_nri_connected",] == 1
    assert samples["sweetpoint_nri_arrivals_total", "in-time"] == 5
    assert samples["sweetpoint_nri_arrivals_total", "late"] == 2
    assert dict(PublishedState(report=found).status())["nri"] == state
    assert not any("nri" in family.name for family in agent_families(report(0)))
