# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The HTML report of a demonstration: one file without external resources, light and dark."""

from collections.abc import Callable, Sequence
from html import escape

from controller.demo.chart import Band, Chart, Point, Series
from controller.demo.results import DROPPED_S, Phase, Run, Sample, quantile, summarise
from controller.demo.table import HEADINGS, cells, verdicts

__all__ = ("render",)

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1d2430; --soft: #667085;
  --line: #d8dde6; --card: #f6f7f9; --a: #2563c9; --b: #d9480f; --c: #2b8a3e; --d: #8449b5;
  --drop: rgba(100, 110, 130, .10); --on: rgba(43, 138, 62, .13); }
@media (prefers-color-scheme: dark) { :root { --page: #14181f; --ink: #e6e9ee; --soft: #98a2b3;
  --line: #323a47; --card: #1b212b; --a: #6ea8ff; --b: #ff9263; --c: #69c27d; --d: #c795f0;
  --drop: rgba(150, 160, 180, .10); --on: rgba(105, 194, 125, .14); } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1200px; padding: 2rem 1.25rem 4rem; background: var(--page);
  color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
.lead { color: var(--soft); margin: 0 0 1.5rem; }
.simulated { border: 2px solid var(--b); border-radius: 8px; padding: .6rem 1rem; color: var(--b);
  font-weight: 700; }
.verdict { background: var(--card); border-left: 4px solid var(--c); padding: .6rem 1rem;
  margin: .6rem 0; border-radius: 4px; } .verdict.missed { border-color: var(--b); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: .85rem; }
th, td { padding: .4rem .5rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } th:first-child, td:first-child { text-align: left; }
svg { width: 100%; min-width: 760px; height: auto; display: block; background: var(--card);
  border-radius: 8px; } svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
svg text.phase { font-weight: 600; fill: var(--ink); }
.grid { stroke: var(--line); } .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.a { stroke: var(--a); background: var(--a); } .b { stroke: var(--b); background: var(--b); }
.c { stroke: var(--c); background: var(--c); } .d { stroke: var(--d); background: var(--d); }
.line.goal-a, .line.goal-b { stroke-dasharray: 6 4; }
.goal-a { stroke: var(--a); background: var(--a); }
.goal-b { stroke: var(--b); background: var(--b); }
.phase-band { fill: none; stroke: var(--line); } .dropped { fill: var(--drop); stroke: none; }
.idle-on { fill: var(--on); stroke: none; }
.legend { margin: .3rem 0 0; font-size: .88rem; color: var(--soft); }
.legend span { margin-right: 1.4rem; } .legend i { display: inline-block; width: 1.1rem;
  height: 3px; margin-right: .45rem; vertical-align: middle; }
.key { display: inline-block; width: 1rem; height: .8rem; vertical-align: middle;
  margin-right: .3rem; border: 1px solid var(--line); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; font-size: .92rem; }
dt { color: var(--soft); } dd { margin: 0; }
"""


def render(run: Run) -> str:
    """Return *run* as one HTML page."""
    title = "sweetpoint demo" + (" (SIMULATED)" if run.simulated else "")
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>",
        '<p class="lead">A latency-sensitive web service and best-effort jobs on one machine: '
        "alone, together without control, together under sweetpoint.</p>",
    ]
    if run.simulated:
        parts.append('<p class="simulated">SIMULATED: no program ran and nothing was measured.</p>')
    parts += [_verdict(text) for text in verdicts(run.phases)]
    parts += ["<h2>Result</h2>", _table(run.phases)]
    parts += _time_lines(run.phases)
    parts += ["<h2>Environment</h2>", _environment(run), "<h2>Notes</h2><ul>"]
    parts += [f"<li>{escape(note)}</li>" for note in run.notes]
    parts.append("</ul></body></html>\n")
    return "\n".join(parts)


def _verdict(text: str) -> str:
    style = "verdict missed" if "Missed:" in text else "verdict"
    return f'<p class="{style}">{escape(text)}</p>'


def _table(phases: Sequence[Phase]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in HEADINGS)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells(row)) + "</tr>"
        for row in summarise(phases)
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _environment(run: Run) -> str:
    items = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in run.environment)
    return f"<dl>{''.join(items)}</dl>"


def _time_lines(phases: Sequence[Phase]) -> list[str]:
    line = _TimeLine(phases)
    charts = (
        (
            "Request latency per second",
            line.chart("ms (log)", line.latency(), log=True),
        ),
        (
            "Run-queue latency p99 of the service, one-second window, and its sweet point",
            line.chart("ms (log)", line.run_queue(), log=True),
        ),
        (
            "Knobs: CFS quota on best-effort, and sched-idle as a green background",
            line.chart("CPUs", line.knobs(), idle=True),
        ),
        ("Demand and filtered deviation", line.chart("ratio", line.control())),
        ("CPU time used", line.chart("CPUs", line.cpu())),
    )
    text = [
        '<h2>Time lines</h2><p class="legend"><span><span class="key" '
        'style="background:var(--drop)"></span>first seconds of a phase, not counted</span></p>'
    ]
    for title, chart in charts:
        text.append(f"<h2>{escape(title)}</h2>")
        text.append(f'<div class="scroll">{chart.svg()}</div>{chart.legend()}')
    return text


class _TimeLine:
    """Concatenates the phases on one time axis, without the pauses between them."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        self._placed: list[tuple[float, Phase]] = []
        self._end = 0.0
        for phase in phases:
            self._placed.append((self._end, phase))
            self._end += phase.seconds

    def chart(
        self, unit: str, series: Sequence[Series], *, log: bool = False, idle: bool = False
    ) -> Chart:
        bands = [
            band
            for start, phase in self._placed
            for band in (
                Band(
                    from_s=start,
                    to_s=start + phase.seconds,
                    style="phase-band",
                    label=phase.title,
                ),
                Band(from_s=start, to_s=start + DROPPED_S, style="dropped"),
            )
        ]
        if idle:
            bands = [*self._idle_bands(), *bands]
        return Chart(
            title=series[0].label, unit=unit, seconds=self._end, series=series, bands=bands, log=log
        )

    def latency(self) -> list[Series]:
        def per_second(q: float) -> list[Point]:
            points: list[Point] = []
            for start, phase in self._placed:
                points.append((start, None))
                for second in phase.load:
                    us = quantile(second.latency_us, q)
                    value = None if us is None else us / 1000
                    points.append((start + second.start_s + 0.5, value))
            return points

        return [
            Series(label="p99 (ms)", style="b", points=per_second(0.99)),
            Series(label="p50 (ms)", style="a", points=per_second(0.5)),
        ]

    def run_queue(self) -> list[Series]:
        return [
            self._line("run-queue p99 of arrivals (ms)", "a", lambda s: s.delay_p99_ms),
            self._line(
                "its sweet point (ms)", "goal-a", lambda s: s.delay_sweet_point_ms, step=True
            ),
            self._line("run-queue p99 of waits (ms)", "b", lambda s: s.runq_p99_ms),
            self._line("its sweet point (ms)", "goal-b", lambda s: s.sweet_point_ms, step=True),
        ]

    def knobs(self) -> list[Series]:
        label = "quota of best-effort (CPUs; no line: none)"
        return [self._line(label, "d", lambda s: s.be_quota_cpus, step=True)]

    def control(self) -> list[Series]:
        return [
            self._line("demand (0 free, 1 squeezed to the floor)", "d", lambda s: s.demand),
            self._line(
                "filtered deviation (0 at the sweet point)", "a", lambda s: s.filtered_deviation
            ),
        ]

    def cpu(self) -> list[Series]:
        return [
            self._rate("best-effort (CPUs)", "c", lambda s: s.be_oncpu_s),
            self._rate("service (CPUs)", "a", lambda s: s.ls_oncpu_s),
            self._rate("stolen by the hypervisor (CPUs)", "b", lambda s: s.steal_s),
        ]

    def _line(
        self, label: str, style: str, value: Callable[[Sample], float | None], *, step: bool = False
    ) -> Series:
        points: list[Point] = []
        for start, phase in self._placed:
            points.append((start, None))
            points += [(start + sample.time_s, value(sample)) for sample in phase.samples]
        return Series(label=label, style=style, points=points, step=step)

    def _rate(self, label: str, style: str, counter: Callable[[Sample], float]) -> Series:
        """Return the rate of a counter, over intervals of about one second."""
        points: list[Point] = []
        for start, phase in self._placed:
            points.append((start, None))
            old: Sample | None = None
            for sample in phase.samples:
                if old is None:
                    old = sample
                elif sample.time_s - old.time_s >= 0.99:
                    rate = (counter(sample) - counter(old)) / (sample.time_s - old.time_s)
                    points.append((start + sample.time_s, rate))
                    old = sample
        return Series(label=label, style=style, points=points)

    def _idle_bands(self) -> list[Band]:
        bands: list[Band] = []
        for start, phase in self._placed:
            on = [sample.time_s for sample in phase.samples if sample.be_idle]
            if on:
                bands.append(Band(from_s=start + on[0], to_s=start + on[-1], style="idle-on"))
        return bands
