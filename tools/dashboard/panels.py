# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Builders of the dashboard's panels, and of the selectors in its queries.

A query is a pair of PromQL and legend. "All" also matches series without the labels ``cluster``
and ``namespace``, so the dashboard works for clusters and for hosts without Kubernetes.
"""

from collections.abc import Sequence

from grafana_foundation_sdk.builders import common as build
from grafana_foundation_sdk.builders import dashboard, prometheus, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import stat as stats
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

__all__ = (
    "DATASOURCE",
    "NODE",
    "SERVICE",
    "Query",
    "coded",
    "equal",
    "graph",
    "of_cluster",
    "rate",
    "recorded",
    "series",
    "stat",
    "states",
    "worst_first",
)

Query = tuple[str, str]
States = Sequence[tuple[str, str]]

DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
SERVICE = 'service=~"$service"'

# Labels that identify a node.
NODE = "cluster, namespace, instance"

_CLUSTER = 'cluster=~"$cluster"'
_SELECTED = f'{_CLUSTER},namespace=~"$namespace",instance=~"$instance"'
_WIDTH = 24
_HEIGHT = 8


def series(name: str, *matchers: str) -> str:
    """Return a selector of the series ``sweetpoint_NAME`` of the selected nodes."""
    return f"sweetpoint_{name}{{{','.join((_SELECTED, *matchers))}}}"


def rate(name: str, *matchers: str) -> str:
    """Return the rate of the counter ``sweetpoint_NAME``, per second."""
    return f"rate({series(name, *matchers)}[$__rate_interval])"


def of_cluster(name: str, *matchers: str) -> str:
    """Return a selector of the series ``sweetpoint_NAME`` of all nodes of the selected clusters."""
    return f"sweetpoint_{name}{{{','.join((_CLUSTER, *matchers))}}}"


def recorded(level: str, name: str, *matchers: str) -> str:
    """Return a selector of a recording rule, ``LEVEL:sweetpoint_NAME``."""
    return f"{level}:{of_cluster(name, *matchers)}"


def equal(label: str, value: str) -> str:
    """Return a matcher for ``series`` and ``rate``."""
    return f'{label}="{value}"'


def coded(name: str, label: str, values: States, by: str) -> str:
    """Return PromQL for the index in *values* of the value of *label* whose series is 1."""
    parts = (
        f"{series(name, equal(label, value))} * {place}" for place, (value, _) in enumerate(values)
    )
    return f"max by ({NODE}, {by}) ({' or '.join(parts)})"


def graph(
    title: str,
    text: str,
    unit: str,
    *queries: Query,
    span: int = 12,
    bounds: tuple[float | None, float | None] = (0, None),
    limit: tuple[float, ...] = (),
    stacked: bool = False,
    dashed: str = "",
) -> timeseries.Panel:
    """Return a panel of lines over time.

    :param limit: values of threshold lines, orange above the first and red above the second.
    :param dashed: regular expression of the legends of dashed lines, which are set values.
    """
    panel = timeseries.Panel().title(title).description(text).unit(unit).datasource(DATASOURCE)
    panel = panel.span(span).height(_HEIGHT).fill_opacity(25 if stacked else 5).line_width(1)
    panel = panel.legend(_legend()).tooltip(_tooltip()).show_points(common.VisibilityMode.NEVER)
    lowest, highest = bounds
    if lowest is not None:
        panel = panel.min(lowest)
    if highest is not None:
        panel = panel.max(highest)
    if stacked:
        panel = panel.stacking(build.StackingConfig().mode(common.StackingMode.NORMAL))
    if limit:
        style = build.GraphThresholdsStyleConfig().mode(common.GraphTresholdsStyleMode.DASHED)
        panel = panel.thresholds(_thresholds(limit)).thresholds_style(style)
    if dashed:
        line = {"fill": "dash", "dash": [8, 6]}
        panel = panel.override_by_regexp(
            dashed,
            [
                model.DynamicConfigValue(id_val="custom.lineStyle", value=line),
                model.DynamicConfigValue(id_val="custom.fillOpacity", value=0),
            ],
        )
    for number, query in enumerate(queries):
        panel = panel.with_target(_target(number, query))
    return panel


def stat(
    title: str, text: str, unit: str, query: str, limit: tuple[float, ...] = ()
) -> stats.Panel:
    """Return a panel of one number; *limit* as for ``graph``."""
    panel = stats.Panel().title(title).description(text).unit(unit).datasource(DATASOURCE)
    panel = panel.span(3).height(4).graph_mode(common.BigValueGraphMode.NONE)
    panel = panel.thresholds(_thresholds(limit)).color_mode(
        common.BigValueColorMode.VALUE if limit else common.BigValueColorMode.NONE
    )
    last = build.ReduceDataOptions().calcs(["lastNotNull"])
    return panel.reduce_options(last).with_target(_target(0, (query, "")).instant())


def states(
    title: str, text: str, query: Query, values: States, span: int = 12
) -> statetimeline.Panel:
    """Return a panel of states over time: *values* are (word, colour) of 0, 1, 2, ..."""
    shown = {
        str(place): model.ValueMappingResult(text=word, color=colour, index=place)
        for place, (word, colour) in enumerate(values)
    }
    panel = statetimeline.Panel().title(title).description(text).datasource(DATASOURCE)
    panel = panel.span(span).height(_HEIGHT).mappings([model.ValueMap(options=shown)])
    panel = panel.merge_values(True).show_value(common.VisibilityMode.AUTO).row_height(0.8)
    return panel.legend(_legend()).tooltip(_tooltip()).with_target(_target(0, query))


def worst_first(
    title: str, text: str, columns: Sequence[tuple[str, str, str]], span: int = _WIDTH
) -> table.Panel:
    """Return a table of present values, sorted by its first column of numbers.

    :param columns: (heading, unit, query); all queries have the same labels.
    """
    panel = table.Panel().title(title).description(text).datasource(DATASOURCE)
    panel = panel.span(span).height(_HEIGHT)
    renamed = {}
    for number, (heading, unit, expression) in enumerate(columns):
        target = _target(number, (expression, "")).instant().format(PromQueryFormat.TABLE)
        panel = panel.with_target(target)
        renamed[f"Value #{_ref(number)}" if len(columns) > 1 else "Value"] = heading
        unit_of = model.DynamicConfigValue(id_val="unit", value=unit)
        panel = panel.override_by_name(heading, [unit_of])
    organise = {"excludeByName": {"Time": True}, "renameByName": renamed}
    return (
        panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(model.DataTransformerConfig(id_val="organize", options=organise))
        .sort_by([build.TableSortByFieldState().display_name(columns[0][0]).desc(True)])
    )


def _target(number: int, query: Query) -> prometheus.Dataquery:
    expression, legend = query
    target = prometheus.Dataquery().expr(expression).ref_id(_ref(number)).datasource(DATASOURCE)
    return target.legend_format(legend) if legend else target


def _ref(number: int) -> str:
    return chr(ord("A") + number)


def _thresholds(limits: tuple[float, ...]) -> dashboard.ThresholdsConfig:
    colours = ("orange", "red")
    steps = [model.Threshold(value=None, color="green")]
    steps += [model.Threshold(value=each, color=colours[i]) for i, each in enumerate(limits)]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def _legend() -> build.VizLegendOptions:
    legend = build.VizLegendOptions().show_legend(True).placement(common.LegendPlacement.BOTTOM)
    return legend.display_mode(common.LegendDisplayMode.LIST)


def _tooltip() -> build.VizTooltipOptions:
    return build.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
