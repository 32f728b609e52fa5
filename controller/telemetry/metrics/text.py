# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Text format of ``/metrics``, and families with a sample per workload.

``page`` writes the same bytes as ``prometheus_client.generate_latest``, and text in place of the
bytes of a name that are not UTF-8, at which the library fails. The library validates and escapes
the names of the metric and of all labels again for each line, which took 55 of the 70 ms of CPU
time for a page with a thousand workloads. Here the lines of a family share one format string, and
only label values are escaped.

Families of workloads share the label dictionaries of the samples, instead of one for each family
and workload.
"""

from collections.abc import Iterable
from operator import itemgetter
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, Sample
from prometheus_client.utils import floatToGoString

from controller.core.model import CgroupId, WorkloadSample
from controller.core.units import NS_PER_SEC
from controller.host.names import utf8
from controller.telemetry.report import TickReport

__all__ = (
    "Labels",
    "filled",
    "labelled_samples",
    "page",
    "seconds",
)


def page(families: Iterable[Metric]) -> bytes:
    """Return the text of *families*, which must be counters and gauges.

    All samples of a family must have the same label names, as ``add_metric`` makes them.
    """
    pieces: list[str] = []
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        described = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
        pieces.append(f"# HELP {name} {described}\n# TYPE {name} {family.type}\n")
        pieces += _lines(name, family)
    return utf8("".join(pieces))


def _lines(name: str, family: Metric) -> list[str]:
    samples = family.samples
    labels = sorted(samples[0].labels) if samples else []
    # Access by index: a named tuple's attributes are slower, and there are twelve thousand samples.
    if not labels:
        return [f"{name} {_number(each[2])}\n" for each in samples]
    if len(labels) == 1:
        (label,) = labels
        return [
            f'{name}{{{label}="{_escaped(each[1][label])}"}} {_number(each[2])}\n'
            for each in samples
        ]
    form = name + "{" + ",".join(f'{label}="%s"' for label in labels) + "} %s\n"
    values_of = itemgetter(*labels)
    return [form % (*map(_escaped, values_of(each[1])), _number(each[2])) for each in samples]


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value


def _number(value: float) -> str:
    if 0 <= value < 1e6:
        return repr(float(value))
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]  # Go format of exponents


Labels = dict[str, str]
_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)


def filled(family: _Family, rows: Iterable[tuple[Labels, float | None]]) -> _Family:
    """Add *rows* of (labels, number) to *family* and return it; ``None`` makes no series.

    The rows of several families may share their label dictionaries.
    """
    name = f"{family.name}_total" if family.type == "counter" else family.name
    family.samples += [
        Sample(name, labels, number) for labels, number in rows if number is not None
    ]
    return family


def labelled_samples(report: TickReport) -> list[tuple[Labels, WorkloadSample]]:
    """Return all samples with the label ``workload``: the name, empty if it is not known."""
    labels: dict[CgroupId, Labels] = {
        each.cgroup: {"workload": each.name} for each in report.workloads
    }
    unknown = {"workload": ""}
    return [(labels.get(each.cgroup, unknown), each) for each in report.samples]


def seconds(time_ns: float | None) -> float | None:
    """Return *time_ns* in seconds; ``None`` stays ``None``."""
    return None if time_ns is None else time_ns / NS_PER_SEC
