# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Metric families of the agent itself."""

from controller.agent.agent_end import RESTART_REASONS
from controller.agent.guardian import Heartbeat
from controller.config.policies import PoliciesInForce, PolicyInForce
from controller.core.decision import Plan
from controller.core.looks import TickReason
from controller.nri.doorbell import DoorbellState
from controller.telemetry.metrics.agent import agent_families, counter_families
from controller.telemetry.report import QUIET, UNFOUNDED, PublishedState
from tests.support.reports import DEMAND, report


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


def test_policies_have_a_series_each_and_say_why_they_are_in_force() -> None:
    policies = PoliciesInForce(
        known=("night", "canary"),
        entries=(PolicyInForce("night", 0, "until 2026-11-28 06:00 CET", {"reserve": "0cpu"}),),
        next_change_s=1.8e9,
        undecided=("canary",),
    )
    found = report(0, policies=policies, label_origin="unknown")
    (family,) = (f for f in agent_families(found) if f.name == "sweetpoint_policy_in_force")
    assert {s.labels["policy"]: s.value for s in family.samples} == {"night": 1.0, "canary": 0.0}
    assert dict(PublishedState(report=found).status())["policies"] == {
        "known": ("night", "canary"),
        "in_force": [
            {
                "policy": "night",
                "because": "until 2026-11-28 06:00 CET",
                "sets": {"reserve": "0cpu"},
                "replaces": {},
                "changes": [],
            }
        ],
        "candidate": None,
        "undecided": ("canary",),
        "next_change_s": 1.8e9,
        "node_labels": "unknown",
    }
    assert dict(PublishedState(report=report(0)).status())["policies"] is None


def test_every_result_of_a_look_has_a_series_from_the_start() -> None:
    published = PublishedState()
    for reason in (TickReason.START, None, None):
        published.count_look(reason)
    (family,) = (each for each in counter_families(published) if each.name == "sweetpoint_looks")
    counts = {each.labels["result"]: each.value for each in family.samples}
    results = (QUIET, UNFOUNDED, *TickReason)
    assert counts == dict.fromkeys(results, 0.0) | {QUIET: 2.0, "start": 1.0}


def test_a_look_without_a_tick_counts_the_states_that_last_on() -> None:
    plan = Plan(time_ns=0, demands=(DEMAND,))
    published = PublishedState(report=report(0, plan=plan))
    published.count(plan, ())
    published.count_look(None)
    published.count_look(TickReason.WAITS)  # its tick counts them
    assert published.decisions == {(DEMAND.channel, DEMAND.state): 2}
    assert dict(published.status())["tick"]["looks"] == {QUIET: 1, "waits": 1}


def test_looks_that_the_kernel_caused_are_counted_apart() -> None:
    published = PublishedState(report=report(0, plan=Plan(time_ns=0, demands=(DEMAND,))))
    published.count_look(None, woken=True)
    published.count_look(TickReason.WOKEN, woken=True)
    assert published.looks == {UNFOUNDED: 1, "woken": 1}
    assert published.decisions == {}  # no time has passed
