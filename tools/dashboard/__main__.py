# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Generator of the dashboards in deploy/dashboards.

The SDK's models are those of Grafana 10.1; newer versions can load them.
"""

from collections.abc import Callable
from dataclasses import dataclass
import json
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    Panel,
    RowPanel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from tools.dashboard import agent, fleet, kubernetes, loop, work
from tools.dashboard.panels import DATASOURCE

__all__ = ("BOARDS", "FOLDER", "Board", "text")

FOLDER = Path(__file__).parents[2] / "deploy" / "dashboards"


@dataclass(frozen=True)
class Board:
    """A dashboard; ``name`` is that of its file, and its id in Grafana.

    ``rows`` are (title, panels, collapsed), ``variables`` (name, label, query).
    """

    name: str
    title: str
    description: str
    rows: tuple[tuple[str, Callable[[], list[Builder[Panel]]], bool], ...]
    variables: tuple[tuple[str, str, str], ...]


_LABELS = 'cluster=~"$cluster",namespace=~"$namespace"'
BOARDS = (
    Board(
        "sweetpoint",
        "sweetpoint",
        "Deviation of services from their sweet points, limits on best-effort work, causes.",
        # Rows without data on many nodes are collapsed.
        (
            ("At a glance", loop.glance, False),
            ("Services against their sweet points", loop.services, False),
            ("Demand by channel", loop.demand, False),
            ("Knobs: wanted and applied", work.knobs, False),
            ("Best-effort work: allowance and use", work.allowance, False),
            ("Blame", work.blame, False),
            ("Decisions and evictions", work.decisions, False),
            ("Agent health", agent.health, False),
            ("Kubernetes", kubernetes.pods, True),
            ("Links", agent.links, True),
            ("Caches, memory bandwidth and cores", agent.resctrl, True),
        ),
        (
            ("cluster", "Cluster", "label_values(sweetpoint_mode, cluster)"),
            (
                "namespace",
                "Namespace",
                'label_values(sweetpoint_mode{cluster=~"$cluster"}, namespace)',
            ),
            ("instance", "Node", f"label_values(sweetpoint_mode{{{_LABELS}}}, instance)"),
            (
                "service",
                "Service",
                f'label_values(sweetpoint_indicator_status{{{_LABELS},instance=~"$instance"}}, '
                "service)",
            ),
        ),
    ),
    Board(
        "sweetpoint-fleet",
        "sweetpoint fleet",
        "Agents, services and best-effort work of all nodes, and the worst nodes.",
        (
            ("Agents", fleet.total, False),
            ("Services", fleet.services, False),
            ("Best-effort work", fleet.work, False),
            ("Nodes", fleet.nodes, False),
        ),
        (
            ("cluster", "Cluster", "label_values(cluster:sweetpoint_mode:count, cluster)"),
            (
                "service",
                "Service",
                'label_values(service:sweetpoint_indicator_status:count{cluster=~"$cluster"}, '
                "service)",
            ),
        ),
    ),
)


def _dashboard(board: Board) -> Dashboard:
    made = (
        Dashboard(board.title)
        .uid(board.name)
        .description(board.description)
        .tags(["sweetpoint"])
        .time("now-3h", "now")
        .timezone("browser")
        .refresh("30s")
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
    )
    made = made.with_variable(
        DatasourceVariable("datasource").label("Data source").type("prometheus")
    )
    for name, label, query in board.variables:
        made = made.with_variable(_variable(name, label, query))
    for title, panels, collapsed in board.rows:
        row = Row(title).collapsed(collapsed)
        made = _collapsed(made, row, panels()) if collapsed else _open(made, row, panels())
    return made


def text(board: Board) -> str:
    """Return the content of the file of *board*; panels are numbered in their order."""
    built = _dashboard(board).build()
    number = 0
    for panel in built.panels or ():
        inside = panel.panels if isinstance(panel, RowPanel) else None
        for each in (panel, *(inside or ())):
            number += 1
            each.id_val = number
    return json.dumps(built, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _open(made: Dashboard, row: Row, panels: list[Builder[Panel]]) -> Dashboard:
    made = made.with_row(row)
    for panel in panels:
        made = made.with_panel(panel)
    return made


def _collapsed(made: Dashboard, row: Row, panels: list[Builder[Panel]]) -> Dashboard:
    for panel in panels:
        row = row.with_panel(panel)
    return made.with_row(row)


def _variable(name: str, label: str, query: str) -> QueryVariable:
    """Return a multiple choice, by default "All", which also matches series without the label."""
    every = VariableOption(selected=True, text=["All"], value=["$__all"])
    return (
        QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(DATASOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(every)
    )


if __name__ == "__main__":
    for each in BOARDS:
        path = FOLDER / f"{each.name}.json"
        path.write_text(text(each))
        print(path)
