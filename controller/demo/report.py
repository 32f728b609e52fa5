# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The HTML report of a demonstration, as a page of ``controller.page``."""

from collections.abc import Callable, Sequence

from controller.core.decision import ChannelState
from controller.demo.results import (
    DROPPED_S,
    Phase,
    Run,
    Sample,
    is_over,
    quantile,
    rounds,
    summarise,
    windows,
)
from controller.demo.table import HEADINGS, cells
from controller.demo.verdict import WINDOWS_WITHIN, disturbance, memory_sentence, verdicts
from controller.page.chart import Band, Chart, Point, Series
from controller.page.document import Card, Cards, Document, Facts, Fold, Part, Section, Table, Text
from controller.page.document import render as pieces
from controller.page.quantities import spaced

__all__ = ("knobs_sentence", "render")


def render(run: Run) -> str:
    """Return *run* as one HTML page."""
    title = "sweetpoint demo" + (" (SIMULATED)" if run.simulated else "")
    sections = (
        Section(title="Result", parts=_result(run.phases)),
        *(
            [Section(title="Memory", parts=(Text(memory_sentence(run.memory)),))]
            if run.memory
            else []
        ),
        Section(title="Time lines", parts=_rounds(run.phases)),
        Section(
            title="How it was measured",
            parts=(
                Fold(title="Notes", parts=(run.notes,)),
                Fold(title="Environment", parts=(Facts(run.environment),)),
            ),
        ),
    )
    busy = disturbance(run.phases)
    document = Document(
        title=title,
        lead="A web service that people wait for, and batch work that can wait, on one machine: "
        "the service alone, both without control (unmanaged), both under sweetpoint (managed).",
        notes=(
            *(["SIMULATED: no program ran and nothing was measured."] if run.simulated else []),
            *([busy] if busy else []),
        ),
        sections=sections,
    )
    return "".join(pieces(document))


def knobs_sentence(phases: Sequence[Phase]) -> str | None:
    """Return what was set on batch work, if there is no quota to draw; otherwise ``None``.

    sched-idle sufficed only if the service was well with it.
    """
    managed = [phase for phase in phases if phase.mode == "enforce"]
    samples = [sample for phase in managed for sample in phase.samples]
    if any(sample.be_quota_cpus is not None for sample in samples):
        return None
    seen = [sample for phase in managed for sample in windows(phase)]
    over = [sample for sample in seen if is_over(sample)]
    is_well = bool(seen) and len(over) <= (1 - WINDOWS_WITHIN) * len(seen)
    if not any(sample.be_idle for sample in samples):
        sentence = "No knob was set on batch work: it was neither limited nor behind the service."
    elif is_well:
        return (
            "sched-idle sufficed: in the managed phases batch work ran behind the service, which "
            "was within its sweet points. No quota was needed."
        )
    else:
        sentence = "Batch work ran behind the service (sched-idle), and no quota was set."
    if not is_well and seen:
        sentence += f" The service was above a sweet point in {len(over)} of {len(seen)} windows."
        if sum(sample.state == ChannelState.NOT_BE for sample in over) > len(over) / 2:
            sentence += " In most of these the agent did not find batch work to be the cause."
    return sentence


def _result(phases: Sequence[Phase]) -> list[Part]:
    cards = [
        Card(
            title=each.title,
            figure=spaced(each.figure),
            says=spaced(each.says),
            details=tuple(map(spaced, each.details)),
            kind=each.tone,
        )
        for each in verdicts(phases)
    ]
    return [
        Cards(cards),
        Text(
            "Green, red: the interval is on one side of the limit. Grey: one cannot tell.", "soft"
        ),
        Table(
            caption="All rounds together. Wait and arrival p99: how long the service's threads "
            "waited for a CPU, and how long an arrival at a random time would have.",
            headings=HEADINGS,
            rows=[tuple(map(spaced, cells(row))) for row in summarise(phases)],
        ),
    ]


def _rounds(phases: Sequence[Phase]) -> list[Part]:
    """Return the time lines of the first round, and those of the others folded away.

    Those of the quota loop have a picture of their own, in which their names have room.
    """
    loops = [phase for phase in phases if phase.key.startswith("loop ")]
    first, *others = rounds([phase for phase in phases if phase not in loops])
    parts: list[Part] = [Text("The shaded beginning of a phase is not counted.", "soft")]
    parts += _time_lines(first)
    parts += [
        Fold(title=f"Time lines of round {number}", parts=_time_lines(each, f"round {number}: "))
        for number, each in enumerate(others, 2)
    ]
    if loops:
        parts.append(
            Fold(title="Time lines of the quota loop", parts=_time_lines(loops, "quota loop: "))
        )
    return parts


def _time_lines(phases: Sequence[Phase], prefix: str = "") -> list[Part]:
    """Return the charts of one round; with the *prefix* their titles differ from the others'."""
    line = _TimeLine(phases, prefix)
    sentence = knobs_sentence(phases)
    knobs: Part = (
        Text(sentence)
        if sentence is not None
        else line.chart(
            "Knobs: CFS quota on batch work, and sched-idle as a green background",
            "CPUs",
            line.knobs(),
            idle=True,
        )
    )
    return [
        line.chart("Request latency per second", "ms (log)", line.latency(), log=True),
        knobs,
        Fold(
            title="Run-queue latency, demand and CPU time over time",
            parts=(
                line.chart(
                    "Run-queue latency p99 of the service, one-second window, and its sweet point",
                    "ms (log)",
                    line.run_queue(),
                    log=True,
                ),
                line.chart("Demand and filtered deviation", "ratio", line.control()),
                line.chart("CPU time used", "CPUs", line.cpu()),
            ),
        ),
    ]


class _TimeLine:
    """Concatenates the phases on one time axis, without the pauses between them."""

    def __init__(self, phases: Sequence[Phase], prefix: str) -> None:
        self._prefix = prefix
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
        return Chart(
            title=f"{self._prefix}{title}",
            unit=unit,
            seconds=self._end,
            series=series,
            bands=bands,
            log=log,
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
        label = "quota of batch work (CPUs; no line: none)"
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
            self._rate("batch work (CPUs)", "c", lambda s: s.be_oncpu_s),
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
