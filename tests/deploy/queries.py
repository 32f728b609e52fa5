# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The Prometheus queries of the dashboards and the rules."""

from collections.abc import Iterator
import json
from pathlib import Path
import re
from typing import Any, NamedTuple

import yaml

__all__ = (
    "FLEET",
    "METRIC",
    "NODE",
    "RECORD",
    "Query",
    "dashboard_queries",
    "panels",
    "rule_queries",
    "variables",
)

_DEPLOY = Path(__file__).parents[2] / "deploy"
_RULES = _DEPLOY / "rules"

# Names of the dashboards.
NODE, FLEET = "sweetpoint", "sweetpoint-fleet"
# A metric of an agent, and a recorded one.
METRIC = re.compile(r"(?<![\w:])sweetpoint_[a-z0-9_]+")
RECORD = re.compile(r"\b[a-z]+:sweetpoint_[a-z0-9_]+:[a-z0-9_]+")


class Query(NamedTuple):
    """A PromQL expression and its place: panel, variable or rule."""

    place: str
    expression: str


def dashboard(name: str) -> dict[str, Any]:
    """Return the committed dashboard *name*."""
    return dict(json.loads((_DEPLOY / "dashboards" / f"{name}.json").read_text()))


def panels(name: str) -> Iterator[dict[str, Any]]:
    """Yield every panel with data, including those of collapsed rows."""
    for panel in dashboard(name)["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def dashboard_queries(name: str) -> list[Query]:
    """Return the queries of all panels, as Grafana sends them with "All" selected."""
    return [
        Query(f"{panel['title']} {target['refId']}", _selected(target["expr"]))
        for panel in panels(name)
        for target in panel["targets"]
    ]


def variables(name: str) -> list[tuple[str, Query]]:
    """Return (label, query of the series whose values of the label are listed) per variable."""
    found = []
    for variable in dashboard(name)["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert match is not None, variable
            found.append((match[2], Query(variable["name"], _selected(match[1]))))
    return found


def rule_queries() -> list[Query]:
    """Return the expressions of all rules, the recording ones among them."""
    return [
        Query(rule.get("alert") or rule["record"], rule["expr"])
        for file in sorted(_RULES.glob("*.yaml"))
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
    ]


def _selected(expression: str) -> str:
    every = re.sub(r'=~"\$\w+"', '=~".*"', expression)
    every = every.replace("$__rate_interval", "10s")
    assert "$" not in every, every
    return every
