# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The committed dashboards are up to date, and their queries use metrics that exist."""

from dataclasses import fields, replace
import re

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
import pytest

from controller.core.decision import MemoryReport
from controller.core.model import CgroupId, EvictionResult, WorkloadSample
from controller.kube.state import ClusterState, ProfilesState, ReclaimState
from controller.reconcilers.core_scheduling import CoreState
from controller.reconcilers.resctrl.monitored import MonitorState
from controller.rollout.metrics import RolloutCollector, Seen
from controller.rollout.state import Phase, State
from controller.telemetry.metrics.exporter import Exporter
from controller.telemetry.report import PublishedState
from tests.deploy.queries import (
    FLEET,
    METRIC,
    NODE,
    RECORD,
    Query,
    dashboard,
    dashboard_queries,
    panels,
    rule_queries,
)
from tests.support.loops.eviction_stepper import HOG, Stepper, candidate
from tests.support.reports import report
from tools.dashboard.__main__ import BOARDS, FOLDER, Board, text

# A workload for which every counter of the hardware was read.
_COUNTED = WorkloadSample(
    CgroupId("cpu", 6),
    cycles=1,
    instructions=1,
    llc_misses=1,
    llc_references=1,
    stalled_cycles=1,
)

_ROLLOUT = State(digest="d", phase=Phase.CANARY, since_s=0.0, nodes={"better": 1})


QUERIES = [*dashboard_queries(NODE), *dashboard_queries(FLEET), *rule_queries()]

# Labels that scrapers in a cluster add; a label of the same name would be renamed.
_TARGET = {"cluster", "container", "endpoint", "instance", "job", "namespace", "node", "pod"}


@pytest.fixture(scope="module")
def families() -> list[Metric]:
    """All metrics of an agent on a host with all functions, and of the controller of a rollout."""
    published = PublishedState()
    memory = MemoryReport(**dict.fromkeys((each.name for each in fields(MemoryReport)), 1))
    published.report = report(
        1,
        plan=replace(report(1).plan, memory=memory),
        samples=(_COUNTED,),
        monitor=MonitorState(
            problem="", groups=1, adopted=0, without_room=0, elsewhere=0, errors=0
        ),
        cores=CoreState(carrying=1, foreign=0, overlap_ratio=0.5),
        cluster=ClusterState(
            node="n1",
            age_s=1.0,
            classes={("best-effort", "label"): 1},
            label_problems={"shop/web": "no such profile"},
            left_knobs={"cpu.idle": "koordlet"},
            requests={"500": 1},
            profiles=ProfilesState(config_map="sweetpoint/profiles"),
            reclaimable=(ReclaimState("sweetpoint.dev/cpu", 1000, 0, False, False, 500),),
        ),
    )
    agent = text_string_to_metric_families(Exporter(published).render().decode())
    return [*agent, *RolloutCollector(lambda: Seen(True, _ROLLOUT, "")).collect()]


@pytest.fixture(scope="module")
def metrics(families: list[Metric]) -> frozenset[str]:
    return frozenset(
        f"{family.name}_total" if family.type == "counter" else family.name for family in families
    )


def test_no_label_collides_with_those_of_the_scraper(families: list[Metric]) -> None:
    for family in families:
        for sample in family.samples:
            assert not sample.labels.keys() & _TARGET, sample.name


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_the_committed_dashboards_are_up_to_date(board: Board) -> None:
    committed = (FOLDER / f"{board.name}.json").read_text()
    assert committed == text(board), "run: .venv/bin/python -m tools.dashboard"


def test_no_other_dashboard_is_there() -> None:
    assert {each.stem for each in FOLDER.iterdir()} == {each.name for each in BOARDS}


@pytest.mark.parametrize("query", QUERIES, ids=lambda q: q.place)
def test_every_metric_exists(query: Query, metrics: frozenset[str]) -> None:
    assert set(METRIC.findall(query.expression)) <= metrics
    records = {each.place for each in rule_queries() if RECORD.fullmatch(each.place)}
    assert set(RECORD.findall(query.expression)) <= records


def test_the_fleet_reads_aggregates_and_only_the_worst_nodes() -> None:
    """A query with a series per node in its answer would be slow, and its panel unreadable."""
    for place, expression in dashboard_queries(FLEET):
        assert bool(RECORD.search(expression)) is not expression.startswith("topk(10, max by"), (
            place
        )
        assert not METRIC.search(expression) or not RECORD.search(expression), place
    used = {name for q in QUERIES for name in RECORD.findall(q.expression)}
    assert used == {each.place for each in rule_queries() if RECORD.fullmatch(each.place)}


def test_no_aggregate_has_a_series_per_node() -> None:
    for place, expression in rule_queries():
        if RECORD.fullmatch(place):
            # That of the outermost aggregation, and those of both sides of an "or".
            outer = re.split(r"\bor\b", expression)
            labels = [set(re.findall(r"by \(([^)]*)\)", each)[:1]) for each in outer]
            assert "instance" not in str(labels), place


def test_evictions_are_those_that_count_for_the_limit_of_a_node() -> None:
    counted = set()
    for result in EvictionResult:
        stepper = Stepper(candidate(HOG, 1.0))
        assert stepper.run(61)
        stepper.answer(HOG, result)
        stepper.step()
        if stepper.policy.history.asked_ns:
            counted.add(str(result))
    queried = [
        set(results.split("|"))
        for query in QUERIES
        for results in re.findall(r'evictions_total{[^}]*result=~"([^"]+)"', query.expression)
    ]
    # In one panel, and twice in the alert.
    assert queried == [counted] * 3


@pytest.mark.parametrize("name", (NODE, FLEET))
def test_every_panel_has_a_description_and_units(name: str) -> None:
    for panel in panels(name):
        title = panel["title"]
        assert len(panel["description"]) >= 15, title
        assert panel["description"].endswith("."), title
        # State panels have words for states, tables a unit per column.
        if panel["type"] == "state-timeline":
            assert panel["fieldConfig"]["defaults"]["mappings"], title
        elif panel["type"] != "table":
            assert panel["fieldConfig"]["defaults"]["unit"], title
        for target in panel["targets"]:
            assert panel["type"] in ("stat", "table") or target["legendFormat"], title


def test_every_panel_respects_the_selected_nodes() -> None:
    free = {panel["title"] for panel in panels(NODE) for each in panel["targets"] if _free(each)}
    # One Prometheus may evaluate the rules for all clusters; its labels are not known.
    assert free == {"Alerts"}


def _free(target: dict[str, str]) -> bool:
    names = METRIC.findall(target["expr"])
    return not names or target["expr"].count('instance=~"$instance"') < len(names)


@pytest.mark.parametrize("name", (NODE, FLEET))
def test_ids_are_unique_and_nothing_overlaps(name: str) -> None:
    every = [*panels(name), *(each for each in dashboard(name)["panels"] if each["type"] == "row")]
    ids = [panel["id"] for panel in every]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in every:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
