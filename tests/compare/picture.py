# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The results of a comparison as SVG: p99 relative to alone, and work, by policy.

``controller.page.chart`` draws lines over time; here are points with intervals. Colours follow the
light or dark theme on a background of their own, so that they are readable on any page.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
import math

from tests.compare.record import ALONE, Block
from tests.compare.results import OURS, SCHED_IDLE, by_mix, by_resource, compare
from tests.compare.statistics import Interval

__all__ = ("FULL_WIDTH", "SHORT_WIDTH", "Group", "Line", "draw", "every_mix", "short")

FULL_WIDTH = 760
SHORT_WIDTH = 390
_LABEL_PX, _VALUE_PX, _GAP_PX = 114, 42, 12
_LINE_PX, _TITLE_PX, _HEADING_PX, _AXIS_PX = 22, 26, 24, 22
_LEAST_TICK_PX = 30
_RATIOS = tuple(mantissa * 10.0**power for power in range(-2, 5) for mantissa in (1, 2, 5))
_STYLE = """\
svg { --text: #1f2328; --soft: #59636e; --grid: #d1d9e0; --mark: #57606a; --ours: #0550ae; }
.ground { fill: #ffffff; }
@media (prefers-color-scheme: dark) {
  svg { --text: #f0f6fc; --soft: #9198a1; --grid: #3d444d; --mark: #b1bac4; --ours: #79c0ff; }
  .ground { fill: #0d1117; }
}
text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--text); }
.soft { fill: var(--soft); font-size: 11px; } .title { font-weight: 600; }
.grid { stroke: var(--grid); } .one { stroke: var(--soft); }
.mark { stroke: var(--mark); fill: var(--mark); stroke-width: 2; }
.ours { font-weight: 600; }
.mark.ours { stroke: var(--ours); fill: var(--ours); stroke-width: 3; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A policy: p99 relative to alone, work relative to sched-idle alone; ``None``: not known."""

    policy: str
    p99: Interval | None
    work: Interval | None


@dataclass(frozen=True, slots=True)
class Group:
    """Lines below a title."""

    title: str
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """A column of points: its place in pixels, its axis, and the text of a value."""

    heading: str
    left: float
    right: float
    low: float
    high: float
    ticks: Sequence[float]
    log: bool
    text: Callable[[float], str]

    def x(self, value: float) -> float:
        """Return the place of *value*, at the border if it is outside."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.left + share * (self.right - self.left)


def short(blocks: Sequence[Block]) -> str:
    """Return the picture of each group of mixes of the usable *blocks*."""
    return draw([_group(name, own) for name, own in by_resource(blocks).items()], SHORT_WIDTH)


def every_mix(blocks: Sequence[Block]) -> str:
    """Return the picture of each mix of the usable *blocks*."""
    return draw([_group(mix, own) for mix, own in by_mix(blocks).items()], FULL_WIDTH)


def _group(title: str, blocks: Sequence[Block]) -> Group:
    lines = []
    for policy in dict.fromkeys(block.policy for block in blocks if block.policy != ALONE):
        p99 = compare(blocks, policy, ALONE)
        work = compare(blocks, policy, SCHED_IDLE)
        lines.append(
            Line(
                policy=policy,
                p99=None if p99 is None else p99.p99,
                work=None if work is None else work.work,
            ),
        )
    return Group(title, lines)


def draw(groups: Sequence[Group], width: int) -> str:
    """Return *groups* below each other as an SVG document of *width* pixels."""
    panels = _panels(groups, width)
    parts = [
        f'<text class="soft" x="{panel.left:.0f}" y="16">{escape(panel.heading)}</text>'
        for panel in panels
    ]
    y = _HEADING_PX
    for group in groups:
        parts += _group_parts(group, panels, y)
        y += _group_px(group)
    summary = escape("; ".join(_summary(group) for group in groups), quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" '
        f'height="{y}" role="img" aria-label="{summary}">\n<style>{_STYLE}</style>\n'
        f'<rect class="ground" width="{width}" height="{y}" rx="6"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panels(groups: Sequence[Group], width: int) -> tuple[_Panel, _Panel]:
    lines = [line for group in groups for line in group.lines]
    column = (width - _LABEL_PX) / 2
    plot = column - _VALUE_PX - _GAP_PX
    ratios = [value for line in lines for value in line.p99 or () if 0 < value < math.inf]
    low = max((tick for tick in _RATIOS if tick <= min([1.0, *ratios])), default=_RATIOS[0])
    high = min((tick for tick in _RATIOS if tick >= max([2.0, *ratios])), default=_RATIOS[-1])
    works = [value for line in lines for value in line.work or () if value < math.inf]
    most = math.ceil(max([1.0, *works]) * 4) / 4
    return (
        _Panel(
            heading="p99, alone = 1",
            left=_LABEL_PX,
            right=_LABEL_PX + plot,
            low=low,
            high=high,
            ticks=[tick for tick in _RATIOS if low <= tick <= high],
            log=True,
            text=lambda value: f"{value:.{1 if value < 9.95 else 0}f}x",
        ),
        _Panel(
            heading="work, % of sched-idle",
            left=_LABEL_PX + column,
            right=_LABEL_PX + column + plot,
            low=0.0,
            high=min(most, 2.0),
            ticks=[quarter / 2 for quarter in range(int(min(most, 2.0) * 2) + 1)],
            log=False,
            text=lambda value: f"{value:.0%}".replace("%", " %"),
        ),
    )


def _group_px(group: Group) -> int:
    return _TITLE_PX + _LINE_PX * len(group.lines) + _AXIS_PX


def _group_parts(group: Group, panels: Sequence[_Panel], y: int) -> Iterator[str]:
    yield f'<text class="title" x="8" y="{y + 16}">{escape(group.title)}</text>'
    top, bottom = y + _TITLE_PX, y + _TITLE_PX + _LINE_PX * len(group.lines)
    for panel in panels:
        yield from _axis(panel, top, bottom)
    for number, line in enumerate(group.lines):
        middle = top + number * _LINE_PX + _LINE_PX / 2
        style = " ours" if line.policy == OURS else ""
        yield f'<text class="{style}" x="8" y="{middle + 4}">{escape(line.policy)}</text>'
        for panel, interval in zip(panels, (line.p99, line.work), strict=True):
            yield _mark(panel, interval, middle, style)


def _axis(panel: _Panel, top: float, bottom: float) -> Iterator[str]:
    step_px = (panel.right - panel.left) / max(1, len(panel.ticks) - 1)
    for number, tick in enumerate(panel.ticks):
        x = panel.x(tick)
        style = "one" if tick == 1 else "grid"
        yield f'<line class="{style}" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'
        if tick == 1 or step_px >= _LEAST_TICK_PX or number in (0, len(panel.ticks) - 1):
            text = f"{tick:g}" if panel.log else f"{100 * tick:.0f}"
            yield (
                f'<text class="soft" text-anchor="middle" x="{x:.1f}" y="{bottom + 14}">'
                f"{text}</text>"
            )


def _mark(panel: _Panel, interval: Interval | None, y: float, style: str) -> str:
    end = panel.right + _VALUE_PX
    if interval is None:
        return f'<text class="soft" text-anchor="end" x="{end:.1f}" y="{y + 4}">-</text>'
    middle, low, high = interval
    return (
        f'<line class="mark{style}" x1="{panel.x(low):.1f}" x2="{panel.x(high):.1f}" '
        f'y1="{y}" y2="{y}"/>'
        f'<circle class="mark{style}" cx="{panel.x(middle):.1f}" cy="{y}" r="4"/>'
        f'<text class="{style}" text-anchor="end" x="{end:.1f}" y="{y + 4}">'
        f"{panel.text(middle)}</text>"
    )


def _summary(group: Group) -> str:
    lines = [
        f"{line.policy} p99 {line.p99[0]:.2f} times that alone, work {line.work[0]:.0%}"
        for line in group.lines
        if line.p99 is not None and line.work is not None
    ]
    return f"{group.title}: {', '.join(lines)}"
