# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The state of an agent, as ``sweetpoint top`` gets it."""

import json
from typing import Any
import urllib.request

from controller.core.decision import Cause, Culprit, Plan, Verdict
from controller.core.model import CgroupId, Channel, Knob, KnobReading, KnobValue
from controller.demo.programs import free_port
from controller.host.pause_file import PauseEntry, PauseState
from controller.telemetry.http import StatusServer
from controller.telemetry.report import PublishedState
from tests.support.reports import JOB, report
from tests.support.waiting import DEADLINE_S

__all__ = ("page", "published")


def published(time_ns: int = 10**9, oncpu_ns: int = 0) -> PublishedState:
    """Return the state of an agent that squeezes a job for a service, and is paused."""
    first = report(time_ns)
    plan = first.plan
    culprits = (Culprit(CgroupId("cpu", 7), 0.8),)
    cause = Cause(channel=Channel.CPU, service="web", be_share=0.9, culprits=culprits)
    state = PublishedState()
    state.report = report(
        time_ns,
        plan=Plan(
            time_ns=time_ns,
            demands=plan.demands,
            loops=plan.loops,
            causes=(cause,),
            quota_granted_cpus=0.5,
        ),
        knobs=(
            KnobReading(JOB, Knob.CPU_QUOTA, KnobValue("25000 50000 0"), KnobValue("max 1 0")),
            KnobReading(JOB._replace(path="/batch"), Knob.SCHED_IDLE, KnobValue("1")),
        ),
        samples=tuple(each._replace(oncpu_ns=oncpu_ns) for each in first.samples),
        pauses=PauseState(entries=(("file", PauseEntry("service", "db\x1b", 1e9)),)),
        probe_problems={"net": "no cgroup2 tree"},
    )
    state.count(Plan(time_ns=0, verdicts=(Verdict(subject="web", text="squeezed\x1b[31m"),)), ())
    return state


def page(state: PublishedState) -> dict[str, Any]:
    """Return /statusz of *state*, from a real server."""
    port = free_port()
    server = StatusServer(state, ("127.0.0.1", port), healthy_ns=10**9)
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/statusz", timeout=DEADLINE_S
        ) as answer:
            return dict(json.load(answer))
    finally:
        server.close()
