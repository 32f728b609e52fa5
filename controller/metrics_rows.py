# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Families with a sample for each of a thousand workloads: several share the labels of one."""

from collections.abc import Iterable
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Sample

from controller.model import CgroupId, WorkloadSample
from controller.report import TickReport
from controller.units import NS_PER_SEC

__all__ = ("Labels", "filled", "labelled_samples", "seconds")

Labels = dict[str, str]
_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)


def filled(family: _Family, rows: Iterable[tuple[Labels, float | None]]) -> _Family:
    """Return *family* with *rows* of all its labels and a number; ``None`` makes no series.

    Rows of several families may share their labels, which ``add_metric`` would make for each.
    """
    name = f"{family.name}_total" if family.type == "counter" else family.name
    family.samples += [
        Sample(name, labels, number) for labels, number in rows if number is not None
    ]
    return family


def labelled_samples(report: TickReport) -> list[tuple[Labels, WorkloadSample]]:
    """Return all samples, each with the label ``workload``: its name, if it is known."""
    labels: dict[CgroupId, Labels] = {
        each.cgroup: {"workload": each.name} for each in report.workloads
    }
    nobody = {"workload": ""}
    return [(labels.get(each.cgroup, nobody), each) for each in report.samples]


def seconds(time_ns: float | None) -> float | None:
    """Return a time in seconds, if there is one."""
    return None if time_ns is None else time_ns / NS_PER_SEC
