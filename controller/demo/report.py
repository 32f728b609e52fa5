# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The HTML report of a demonstration, as a page of ``controller.page``."""

from collections.abc import Callable, Sequence

from controller.demo.results import DROPPED_S, Phase, Run, Sample, quantile, summarise
from controller.demo.table import HEADINGS, cells, verdicts
from controller.page.chart import Band, Chart, Point, Series
from controller.page.document import Document, Facts, Part, Section, Table, Text
from controller.page.document import render as pieces

__all__ = ("render",)


def render(run: Run) -> str:
    """Return *run* as one HTML page."""
    title = "sweetpoint demo" + (" (SIMULATED)" if run.simulated else "")
    sections = (
        Section(title="Result", parts=[*map(_verdict, verdicts(run.phases)), _table(run.phases)]),
        Section(title="Time lines", parts=_time_lines(run.phases)),
        Section(title="Environment", parts=(Facts(run.environment),)),
        Section(title="Notes", parts=(run.notes,)),
    )
    document = Document(
        title=title,
        lead="A latency-sensitive web service and best-effort jobs on one machine: alone, together "
        "without control, together under sweetpoint.",
        notes=("SIMULATED: no program ran and nothing was measured.",) if run.simulated else (),
        sections=sections,
    )
    return "".join(pieces(document))


def _verdict(text: str) -> Text:
    return Text(text, "bad" if "Missed:" in text else "good")


def _table(phases: Sequence[Phase]) -> Table:
    rows = [cells(row) for row in summarise(phases)]
    return Table(caption="LS: the service, BE: best-effort jobs", headings=HEADINGS, rows=rows)


def _time_lines(phases: Sequence[Phase]) -> list[Part]:
    line = _TimeLine(phases)
    return [
        Text("A shaded begin of a phase is not counted.", "soft"),
        line.chart("Request latency per second", "ms (log)", line.latency(), log=True),
        line.chart(
            "Run-queue latency p99 of the service, one-second window, and its sweet point",
            "ms (log)",
            line.run_queue(),
            log=True,
        ),
        line.chart(
            "Knobs: CFS quota on best-effort, and sched-idle as a green background",
            "CPUs",
            line.knobs(),
            idle=True,
        ),
        line.chart("Demand and filtered deviation", "ratio", line.control()),
        line.chart("CPU time used", "CPUs", line.cpu()),
    ]


class _TimeLine:
    """Concatenates the phases on one time axis, without the pauses between them."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        self._placed: list[tuple[float, Phase]] = []
        self._end = 0.0
        for phase in phases:
            self._placed.append((self._end, phase))
            self._end += phase.seconds

    def chart(
        self,
        title: str,
        unit: str,
        series: Sequence[Series],
        *,
        log: bool = False,
        idle: bool = False,
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
        return Chart(title=title, unit=unit, seconds=self._end, series=series, bands=bands, log=log)

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
