# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Metric families of learned sweet points; their values are in sweetpoint_indicator_sweet_point."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from controller.telemetry.metrics.text import filled
from controller.telemetry.report import TickReport

__all__ = ("learned_families",)

_LABELS = ["service", "indicator"]


def learned_families(report: TickReport) -> Iterator[Metric]:
    """Yield how sure the learned sweet points are, and what they rest on."""
    learned = [
        ({"service": each.service, "indicator": each.indicator}, each)
        for each in report.plan.learned
    ]
    sure = GaugeMetricFamily(
        "sweetpoint_learned_sure",
        "1 if the sweet point is learned for at least one load; 0: that of the profile holds.",
        labels=_LABELS,
    )
    yield filled(sure, ((labels, float(each.is_sure)) for labels, each in learned))
    certainty = GaugeMetricFamily(
        "sweetpoint_learned_certainty_ratio",
        "Certainty of what is learned at the present load, 0 to 1; it is used from 1 on.",
        labels=_LABELS,
    )
    yield filled(certainty, ((labels, each.certainty) for labels, each in learned))
    windows = GaugeMetricFamily(
        "sweetpoint_learned_windows",
        "Undisturbed windows that the learned sweet point rests on, at all loads.",
        labels=_LABELS,
    )
    yield filled(windows, ((labels, float(each.windows)) for labels, each in learned))
    disturbed = GaugeMetricFamily(
        "sweetpoint_learned_disturbed",
        "1 while nothing is learned, because of the reason.",
        labels=[*_LABELS, "reason"],
    )
    rows = (({**labels, "reason": each.disturbance}, 1.0) for labels, each in learned)
    yield filled(disturbed, (row for row in rows if row[0]["reason"]))
