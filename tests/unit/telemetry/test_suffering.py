# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Who suffers, and what the channel does about it; the time of it in the metrics."""

from dataclasses import replace

from controller.core.decision import IndicatorStatus, Plan
from controller.core.model import Channel, IndicatorName
from controller.telemetry.metrics.agent import counter_families
from controller.telemetry.report import PublishedState
from controller.telemetry.suffering import OTHER, SufferingClock, suffering
from tests.support import reports
from tests.support.reports import DEMAND

LOOP = replace(reports.LOOP, filtered_deviation=0.5)
WORSE = replace(LOOP, indicator=IndicatorName.PSI_CPU, filtered_deviation=0.7, selected=False)
OTHERS = replace(LOOP, service="db", filtered_deviation=0.2, selected=False)


def test_the_worst_loop_of_each_service_and_its_state() -> None:
    quiet = (
        replace(LOOP, service="calm", filtered_deviation=0.09),
        replace(LOOP, service="idle", status=IndicatorStatus.IDLE),
        replace(LOOP, service="blind", filtered_deviation=None),
    )
    assert suffering([LOOP, WORSE, OTHERS, *quiet], [DEMAND]) == {
        ("web", Channel.CPU): (WORSE, "squeeze"),
        ("db", Channel.CPU): (OTHERS, OTHER),
    }


def test_the_time_of_it_is_counted() -> None:
    published = PublishedState()
    for time_ns in (10**9, 2 * 10**9, 4 * 10**9, 100 * 10**9):
        published.count(Plan(time_ns=time_ns, loops=(LOOP,), demands=(DEMAND,)), ())
    # The first plan only begins; the last one comes after a pause of the agent.
    assert published.suffered_ns == {("web", "cpu", "squeeze"): 8 * 10**9}
    (family,) = (each for each in counter_families(published) if "above_sweet" in each.name)
    (sample,) = family.samples
    assert (sample.value, sample.labels["state"]) == (8.0, "squeeze")


def test_no_service_suffered_while_ticks_were_left_out() -> None:
    clock = SufferingClock()
    clock.update(Plan(time_ns=10**9, loops=(LOOP,), demands=(DEMAND,)))
    plan = Plan(time_ns=3 * 10**9, loops=(LOOP,), demands=(DEMAND,))
    assert clock.update(plan, left_out_ns=18 * 10**8) == {
        ("web", Channel.CPU, "squeeze"): 2 * 10**8
    }
    assert clock.ran_ns == 2 * 10**9
