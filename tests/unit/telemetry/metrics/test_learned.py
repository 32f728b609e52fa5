# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The metrics of learned sweet points."""

from dataclasses import replace

from controller.core.decision import LearnedReport
from controller.core.learning.quiet import Disturbance
from controller.core.model import IndicatorName
from controller.telemetry.metrics.learned import learned_families
from tests.support.reports import report


def test_certainty_evidence_and_what_disturbs() -> None:
    cpi = LearnedReport(
        service="web",
        indicator=IndicatorName.CPI,
        sweet_point=4e6,
        windows=30,
        is_time=True,
        certainty=0.5,
        is_sure=True,
        disturbance="",
    )
    runq = replace(
        cpi,
        indicator=IndicatorName.RUNQ_P99,
        is_sure=False,
        disturbance=Disturbance.BEST_EFFORT,
    )
    learned = (cpi, runq)
    first = report(1)
    found = {
        (family.name, *sample.labels.values()): sample.value
        for family in learned_families(replace(first, plan=replace(first.plan, learned=learned)))
        for sample in family.samples
    }
    assert found == {
        ("sweetpoint_learned_sure", "web", "cpi"): 1.0,
        ("sweetpoint_learned_sure", "web", "runq_p99"): 0.0,
        ("sweetpoint_learned_certainty_ratio", "web", "cpi"): 0.5,
        ("sweetpoint_learned_certainty_ratio", "web", "runq_p99"): 0.5,
        ("sweetpoint_learned_windows", "web", "cpi"): 30.0,
        ("sweetpoint_learned_windows", "web", "runq_p99"): 30.0,
        ("sweetpoint_learned_disturbed", "web", "runq_p99", "best-effort work is running"): 1.0,
    }
