# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Line charts over time as SVG text.

Written by hand, because a plotting library would be a dependency for this page only. Colours and
dashes are CSS classes of the page, so that a chart follows the light or dark theme.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
import math

__all__ = ("HEIGHT", "WIDTH", "Band", "Chart", "Marker", "Point", "Series")

WIDTH = 1120
HEIGHT = 210
LEFT, RIGHT, TOP, BOTTOM = 66, 36, 28, 32
MIN_TICK_PX = 84
LABEL_PX = 9.0  # average width of a character of a label
# A figure of a service may be any number. Values beyond these are drawn at the edge.
_LARGEST, _SMALLEST = 1e15, 1e-15
_DECADES = 8  # most spaces between the ticks of a logarithmic axis
_STEPS_S = (1, 2, 5, 10, 20, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)

# (time in seconds, value); a value of None interrupts the line.
Point = tuple[float, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line. ``style`` is a CSS class; ``step``: the value holds until the next point."""

    label: str
    style: str
    points: Sequence[Point]
    step: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A time range drawn behind the lines, labelled at the top; ``style`` is a CSS class."""

    from_s: float
    to_s: float
    style: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Marker:
    """An event at a time, drawn as a triangle above the lines; ``text`` is its tooltip."""

    time_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart of ``seconds`` of time with a linear or (``log``) logarithmic value axis.

    The time axis has seconds from the begin, or with ``since`` (an aware time) times of day.
    On a logarithmic axis values that are not positive interrupt the line.
    """

    title: str
    unit: str
    seconds: float
    series: Sequence[Series]
    bands: Sequence[Band] = field(default_factory=tuple)
    markers: Sequence[Marker] = field(default_factory=tuple)
    log: bool = False
    since: datetime | None = None

    def svg(self) -> str:
        """Return the chart as an ``svg`` element."""
        low, high = self._range()
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.summary())}">'
        ]
        parts += [self._band(band) for band in self.bands]
        parts += self._value_axis(low, high)
        parts += self._time_axis()
        parts += [self._line(one, low, high) for one in self.series]
        parts += [self._marker(one) for one in self.markers]
        parts.append("</svg>")
        return "\n".join(parts)

    def legend(self) -> str:
        """Return the legend as HTML; its lines have the dashes of the chart's."""
        items = (
            '<span><svg class="sample" viewBox="0 0 40 8" aria-hidden="true">'
            f'<path class="line {escape(one.style)}" d="M2 4h36"/></svg>{escape(one.label)}</span>'
            for one in self.series
        )
        return f'<p class="legend">{"".join(items)}</p>'

    def summary(self) -> str:
        """Return the chart in words: the range of each line and its last value."""
        parts = []
        for one in self.series:
            values = [v for _, v in one.points if v is not None and not math.isnan(v)]
            if not values:
                parts.append(f"{one.label}: no data")
                continue
            low, high, last = min(values), max(values), values[-1]
            parts.append(f"{one.label}: {low:.3g} to {high:.3g}, at last {last:.3g}")
        events = f"; {len(self.markers)} events" if self.markers else ""
        return f"{self.title} ({self.unit}). {'; '.join(parts)}{events}"

    def _range(self) -> tuple[float, float]:
        points = (point for one in self.series for point in one.points)
        values = [shown for _, value in points if (shown := self._shown(value)) is not None]
        if self.log:
            first = math.floor(math.log10(min(values, default=0.1)))
            last = math.ceil(math.log10(max(values, default=1.0)))
            return 10.0**first, 10.0 ** max(last, first + 1)
        ticks = _round_ticks(min([0.0, *values]), max([1.0, *values]))
        return ticks[0], ticks[-1]

    def _shown(self, value: float | None) -> float | None:
        """Return what is drawn for *value*; ``None`` for a gap."""
        if value is None or math.isnan(value) or (self.log and value <= 0):
            return None
        return min(max(value, _SMALLEST if self.log else -_LARGEST), _LARGEST)

    def _x(self, time_s: float) -> float:
        return LEFT + time_s / max(self.seconds, 1.0) * (WIDTH - LEFT - RIGHT)

    def _y(self, value: float, low: float, high: float) -> float:
        if self.log:
            share = math.log(value / low) / math.log(high / low)
        else:
            share = (value - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def _band(self, band: Band) -> str:
        left, right = self._x(band.from_s), self._x(band.to_s)
        text = (
            f'<rect class="{escape(band.style)}" x="{left:.1f}" y="{TOP}" '
            f'width="{right - left:.1f}" height="{HEIGHT - TOP - BOTTOM}"/>'
        )
        label = band.label
        if len(label) * LABEL_PX > right - left:
            label = label[: max(0, int((right - left) / LABEL_PX) - 1)] + "…"
        if label:
            text += f'<text class="phase" x="{left + 4:.1f}" y="{TOP - 8}">{escape(label)}</text>'
        return text

    def _marker(self, marker: Marker) -> str:
        x = self._x(marker.time_s)
        return (
            f'<g class="marker"><title>{escape(marker.text)}</title>'
            f'<path d="M{x:.1f} {TOP}v{HEIGHT - TOP - BOTTOM}"/>'
            f'<path class="head" d="M{x - 5:.1f} {TOP - 10}h10l-5 9z"/></g>'
        )

    def _value_axis(self, low: float, high: float) -> list[str]:
        if self.log:
            first, last = round(math.log10(low)), round(math.log10(high))
            step = math.ceil((last - first) / _DECADES)
            ticks = [10.0**power for power in range(first, last + 1, step)]
        else:
            ticks = _round_ticks(low, high)
        lines = []
        for tick in ticks:
            y = self._y(tick, low, high)
            lines += [
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
                f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{y + 4:.1f}">'
                f"{tick:g}</text>",
            ]
        middle = (HEIGHT + TOP - BOTTOM) / 2
        lines.append(
            f'<text class="axis" text-anchor="middle" transform="rotate(-90 14 {middle})" '
            f'x="14" y="{middle}">{escape(self.unit)}</text>'
        )
        return lines

    def _time_axis(self) -> list[str]:
        y = HEIGHT - BOTTOM + 16
        pixels_per_s = (WIDTH - LEFT - RIGHT) / max(self.seconds, 1.0)
        step = next((s for s in _STEPS_S if s * pixels_per_s >= MIN_TICK_PX), _STEPS_S[-1])
        first = 0
        if self.since is not None:
            # Ticks at whole multiples of the step of the day that the clock shows.
            clock = self.since
            first = -(clock.hour * 3600 + clock.minute * 60 + clock.second) % step
        return [
            f'<text class="tick" text-anchor="middle" x="{self._x(t):.1f}" y="{y}">'
            f"{self._time(t, step)}</text>"
            for t in range(first, int(self.seconds) + 1, step)
        ]

    def _time(self, time_s: int, step_s: int) -> str:
        if self.since is None:
            if step_s < 60:
                return f"{time_s} s"
            return f"{time_s / 60:g} min" if step_s < 3600 else f"{time_s / 3600:g} h"
        clock = datetime.fromtimestamp(self.since.timestamp() + time_s, self.since.tzinfo)
        return clock.strftime("%H:%M:%S" if step_s < 60 else "%H:%M")

    def _line(self, series: Series, low: float, high: float) -> str:
        path: list[str] = []
        drawing = alone = False
        last_y = 0.0
        for time_s, each in series.points:
            value = self._shown(each)
            if value is None:
                if alone:
                    path.append("h0")  # a dot, by the round ends of lines
                drawing = alone = False
                continue
            x, y = self._x(time_s), self._y(value, low, high)
            if drawing and series.step:
                path.append(f"L{x:.1f} {last_y:.1f}")
            path.append(f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}")
            alone = not drawing
            drawing, last_y = True, y
        if alone:
            path.append("h0")
        return f'<path class="line {escape(series.style)}" d="{" ".join(path)}"/>'


def _round_ticks(low: float, high: float) -> list[float]:
    """Return four to eight round values from at most *low* to at least *high*."""
    rough = (high - low) / 4
    size = 10.0 ** math.floor(math.log10(rough))
    step = size * next(m for m in (1, 2, 5, 10) if m * size >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(index * step, 10) for index in range(first, last + 1)]
