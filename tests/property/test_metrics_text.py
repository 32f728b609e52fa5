# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The page of metrics equals that of the library, for all labels and numbers."""

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from controller.telemetry.metrics.exporter import Exporter
from controller.telemetry.metrics.text import page
from controller.telemetry.report import PublishedState
from tests.support.reports import report

# Surrogates stand for bytes that are not UTF-8, which a name of a cgroup may have.
SURROGATES = st.text("\udc80\udcff\ud800a\\", max_size=6)
VALUE = st.one_of(st.text(max_size=20), st.text('\\"\n{},=', max_size=6), SURROGATES)
NUMBER = st.one_of(st.floats(), st.integers(-(10**18), 10**18), st.booleans())
NAMES = ("workload", "class", "direction", "a", "Z")


@st.composite
def families(draw: st.DrawFn) -> Metric:
    kinds: list[type[CounterMetricFamily | GaugeMetricFamily]] = [
        CounterMetricFamily,
        GaugeMetricFamily,
    ]
    kind = draw(st.sampled_from(kinds))
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    family = kind("sweetpoint_x", draw(VALUE), labels=names)
    rows = st.tuples(st.lists(VALUE, min_size=len(names), max_size=len(names)), NUMBER)
    for values, number in draw(st.lists(rows, max_size=4)):
        family.add_metric(values, number)
    return family


class FixedCollector:
    """A collector of given families."""

    def __init__(self, found: Sequence[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        yield from self._found


def by_library(found: Sequence[Metric]) -> bytes:
    """Return the page of the library, which needs texts that can be encoded."""
    for family in found:
        family.documentation = encodable(family.documentation)
        family.samples = [
            each._replace(labels={name: encodable(value) for name, value in each.labels.items()})
            for each in family.samples
        ]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FixedCollector(found))
    return generate_latest(registry)


def encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


@given(st.lists(families(), max_size=4))
def test_the_page_equals_that_of_the_library(found: list[Metric]) -> None:
    assert page(found) == by_library(found)


@given(st.tuples(VALUE, VALUE), st.integers(0, 2**63))
def test_the_page_of_the_agent_equals_that_of_the_library(
    names: tuple[str, str], count: int
) -> None:
    published = PublishedState()
    published.report = first = report(1, host_pressure_ns={"io": count})
    web, job = (w._replace(name=name) for w, name in zip(first.workloads, names, strict=True))
    published.report = report(1, host_pressure_ns={"io": count}, workloads=(web, job))
    exporter = Exporter(published)
    assert exporter.render() == by_library(list(exporter.collect()))
