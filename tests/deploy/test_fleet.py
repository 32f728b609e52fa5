# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The dashboard about a fleet, answered by a real Prometheus with series of 1,000 nodes."""

from collections.abc import Iterator
import time
from typing import Any

import pytest

from tests.deploy.fleet import Fleet
from tests.deploy.prometheus import Prometheus
from tests.deploy.queries import FLEET, RECORD, dashboard_queries, panels, rule_queries, variables
from tests.support.needs import needs_program
from tests.support.waiting import eventually

pytestmark = [needs_program("prometheus"), needs_program("promtool")]

NODES = 1000
# The range of the dashboard, and a point every 30 s.
RANGE_S, STEP_S = 3 * 3600, 30


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return Fleet(NODES)


@pytest.fixture(scope="module")
def prometheus(
    fleet: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Prometheus, int]]:
    """A server that has evaluated each rule, and the number of series that it was given."""
    home = tmp_path_factory.mktemp("fleet")
    count = fleet.write(home, int(time.time()))
    # What is recorded is older than the newest of what was made up.
    storage = {"tsdb": {"out_of_order_time_window": "1d"}}
    server = Prometheus(home, {"global": {"evaluation_interval": "15s"}, "storage": storage})
    try:
        last = [each.place for each in rule_queries() if RECORD.fullmatch(each.place)][-1]
        eventually("the last rule", lambda: server.has(last))
        yield server, count
    finally:
        server.close()


def values(answer: Any) -> dict[frozenset[str], float]:
    assert not isinstance(answer, str), answer
    return {frozenset(each["metric"].values()): float(each["value"][1]) for each in answer}


def health(server: Prometheus) -> set[str]:
    """Return the states of all rules; *unknown* is that of one before its first evaluation."""
    return {rule["health"] for group in server.get("rules")["groups"] for rule in group["rules"]}


@pytest.mark.thorough
def test_each_query_returns_what_was_made_up(
    prometheus: tuple[Prometheus, int], fleet: Fleet
) -> None:
    server, _ = prometheus
    expected = fleet.expected()
    queries = dashboard_queries(FLEET)
    assert {each.place for each in queries} == expected.keys()
    for place, expression in queries:
        found = values(server.query(expression))
        if "topk" not in expression or "max by" not in expression:
            # A table has the name of a recorded series as a label.
            found = {key - {*RECORD.findall(expression)}: each for key, each in found.items()}
        assert found == pytest.approx(expected[place], rel=0.01), place


@pytest.mark.thorough
def test_the_number_of_recorded_series_does_not_grow_with_nodes(
    prometheus: tuple[Prometheus, int], fleet: Fleet
) -> None:
    server, _ = prometheus
    recorded = server.query('{__name__=~"[a-z]+:sweetpoint_.+"}')
    assert not [each for each in recorded if "instance" in each["metric"]]
    assert len(recorded) == fleet.recorded
    eventually("each rule", lambda: "unknown" not in health(server))
    assert health(server) == {"ok"}


@pytest.mark.thorough
def test_the_variables_have_what_was_made_up(prometheus: tuple[Prometheus, int]) -> None:
    server, _ = prometheus
    found = {
        query.place: {each["metric"][label] for each in server.query(query.expression)}
        for label, query in variables(FLEET)
    }
    assert found == {"cluster": {"c1"}, "service": {f"s{each}" for each in range(20)}}


@pytest.mark.bench
def test_each_query_takes_less_than_two_seconds(prometheus: tuple[Prometheus, int]) -> None:
    """As Grafana sends them: those of tables and single numbers for now, others for a range."""
    server, count = prometheus
    at_once = {
        f"{panel['title']} {target['refId']}"
        for panel in panels(FLEET)
        for target in panel["targets"]
        if target.get("instant")
    }
    print(f"\n{NODES} nodes, {count} series")
    taken_s = {}
    for place, expression in dashboard_queries(FLEET):
        end_s = time.time()
        span = {"start": str(end_s - RANGE_S), "end": str(end_s), "step": str(STEP_S)}
        page, when = ("query", {}) if place in at_once else ("query_range", span)
        began_s = time.monotonic()
        assert not isinstance(server.get(page, query=expression, **when), str), place
        taken_s[place] = time.monotonic() - began_s
        print(f"{1000 * taken_s[place]:6.0f} ms: {page} {place}")
    for group in server.get("rules")["groups"]:
        print(f"{1000 * group['evaluationTime']:6.0f} ms: rules {group['name']}")
    assert max(taken_s.values()) < 2
