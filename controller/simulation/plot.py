# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Runs over time as one SVG file: p99 relative to the objective, and work, per scenario."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from controller.page.chart import HEIGHT, WIDTH, Chart, Series
from controller.simulation.run import Run

__all__ = ("draw",)

_TITLE_PX = 28
_LEGEND_PX = 20
_COLUMN_PX = 250
_STYLE = """
  svg text { font: 12px system-ui, sans-serif; fill: #444; }
  svg text.title { font-weight: 600; fill: #111; }
  .grid { stroke: #ddd; } .line { fill: none; stroke-width: 1.5; stroke-linejoin: round; }
"""
_COLOURS = (
    "#1b6ca8", "#d1495b", "#2e933c", "#8f5db7", "#e08e00", "#00878a", "#7a4b2a", "#c43e96",
    "#5c6b73", "#94a300", "#3d3d9e", "#b3541e", "#4d908e", "#a3123a", "#777777", "#000000",
)  # fmt: skip


def draw(runs: Iterable[Run], titles: Mapping[str, str]) -> str:
    """Return an SVG document with two charts per scenario; the first seed of each policy."""
    first: dict[str, dict[str, Run]] = {}
    for each in runs:
        first.setdefault(each.scenario, {}).setdefault(each.policy, each)
    names = list(dict.fromkeys(policy for runs_of in first.values() for policy in runs_of))
    styles = {name: f"p{index}" for index, name in enumerate(names)}
    css = "".join(
        f".{style} {{ stroke: {_COLOURS[index % len(_COLOURS)]}; }}\n"
        for index, style in enumerate(styles.values())
    )
    parts, y = _legend(styles), _legend_height(len(names))
    for scenario, runs_of in first.items():
        text = escape(f"{scenario}: {titles[scenario]}")
        parts.append(f'<text class="title" x="8" y="{y + 18}">{text}</text>')
        y += _TITLE_PX
        for chart in _charts(scenario, runs_of, styles):
            parts.append(_placed(chart.svg(), y))
            y += HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" '
        f'height="{y}">\n<style>{_STYLE}{css}</style>\n'
        f'<rect width="{WIDTH}" height="{y}" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _charts(scenario: str, runs: Mapping[str, Run], styles: Mapping[str, str]) -> Sequence[Chart]:
    seconds = float(max(len(each.seconds) for each in runs.values()))

    def chart(unit: str, figure: str, log: bool) -> Chart:
        series = [
            Series(
                label=name,
                style=styles[name],
                points=[
                    (float(second), getattr(each, figure))
                    for second, each in enumerate(run.seconds)
                ],
            )
            for name, run in runs.items()
        ]
        return Chart(title=scenario, unit=unit, seconds=seconds, series=series, log=log)

    return chart("p99 / objective", "p99_ratio", True), chart("work (CPUs)", "work_cpus", False)


def _legend_height(count: int) -> int:
    columns = WIDTH // _COLUMN_PX
    return 12 + _LEGEND_PX * -(-count // columns)


def _legend(styles: Mapping[str, str]) -> list[str]:
    columns = WIDTH // _COLUMN_PX
    parts = []
    for index, (name, style) in enumerate(styles.items()):
        x, y = 8 + index % columns * _COLUMN_PX, 16 + index // columns * _LEGEND_PX
        parts.append(
            f'<line class="line {style}" x1="{x}" x2="{x + 24}" y1="{y - 4}" y2="{y - 4}"/>'
            f'<text x="{x + 30}" y="{y}">{escape(name)}</text>'
        )
    return parts


def _placed(svg: str, y: int) -> str:
    """Return a chart as an element at height *y* of another one."""
    return svg.replace("<svg ", f'<svg x="0" y="{y}" width="{WIDTH}" height="{HEIGHT}" ', 1)
