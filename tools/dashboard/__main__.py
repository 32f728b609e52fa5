# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Generator of deploy/dashboards/sweetpoint.json.

The SDK's models are those of Grafana 10.1; newer versions can load them.
"""

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

from tools.dashboard import agent, kubernetes, loop, work
from tools.dashboard.panels import DATASOURCE

__all__ = ("OUTPUT", "dashboard", "text")

OUTPUT = Path(__file__).parents[2] / "deploy" / "dashboards" / "sweetpoint.json"

# (title, panels, collapsed); rows without data on many nodes are collapsed.
_ROWS = (
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
)
_LABELS = 'cluster=~"$cluster",namespace=~"$namespace"'
_VARIABLES = (
    ("cluster", "Cluster", "label_values(sweetpoint_mode, cluster)"),
    ("namespace", "Namespace", 'label_values(sweetpoint_mode{cluster=~"$cluster"}, namespace)'),
    ("instance", "Node", f"label_values(sweetpoint_mode{{{_LABELS}}}, instance)"),
    (
        "service",
        "Service",
        f'label_values(sweetpoint_indicator_status{{{_LABELS},instance=~"$instance"}}, service)',
    ),
)


def dashboard() -> Dashboard:
    """Return the whole dashboard."""
    made = (
        Dashboard("sweetpoint")
        .uid("sweetpoint")
        .description(
            "Deviation of services from their sweet points, limits on best-effort work, causes."
        )
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
    for name, label, query in _VARIABLES:
        made = made.with_variable(_variable(name, label, query))
    for title, panels, collapsed in _ROWS:
        row = Row(title).collapsed(collapsed)
        made = _collapsed(made, row, panels()) if collapsed else _open(made, row, panels())
    return made


def text() -> str:
    """Return the content of the file; panels are numbered in their order."""
    built = dashboard().build()
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
    OUTPUT.write_text(text())
    print(OUTPUT)
