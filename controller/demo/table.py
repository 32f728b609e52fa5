# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The result of a demonstration as a text table and as sentences with the goals."""

from collections.abc import Sequence

from controller.demo.results import Phase, Row, longest_calm_s, summarise

__all__ = ("HEADINGS", "cells", "format_ms", "format_table", "verdicts")

HEADINGS = (
    "phase",
    "LS p50",
    "LS p99",
    "runq p99 waits",
    "arrivals",
    "over sweet point",
    "BE work",
    "of unmanaged",
    "LS CPU",
    "BE CPU",
    "generator late",
)
NOTHING = "-"

# Goals of a managed phase: the part of what the job adds to p99 that has to go, the share of
# windows within the sweet points, the share of the unmanaged best-effort work.
HARM_REMOVED = 0.5
WINDOWS_WITHIN = 0.95
WORK_KEPT = 0.90
# What a job adds to p99 is no harm below this part of it.
HARMLESS = 0.1
# From here on other work disturbs the measurement; on a quiet machine it is 0.01 CPUs and 0.1 ms.
BUSY_STEAL_CPUS = 0.05
BUSY_LATE_MS = 1.0
# Goal of the quota loop: a filtered deviation within +-CALM for CALM_S at a stretch. A deviation
# of 0.3 is a factor of 1.23 at a tolerance of 2.
CALM = 0.3
CALM_S = 30.0


def format_ms(value: float | None) -> str:
    """Return milliseconds as text with about three digits, at a resolution of at most 10 us."""
    if value is None:
        return NOTHING
    return f"{value:.0f} ms" if value >= 100 else f"{value:.{1 if value >= 10 else 2}f} ms"


def cells(row: Row) -> tuple[str, ...]:
    """Return *row* as text, in the order of ``HEADINGS``."""
    over = NOTHING
    if row.violations is not None:
        over = f"{row.violations:.0%} of {row.windows}"
    return (
        row.title,
        format_ms(row.p50_ms),
        format_ms(row.p99_ms),
        format_ms(row.runq_p99_ms),
        format_ms(row.delay_p99_ms),
        over,
        NOTHING if row.work_rate is None else f"{row.work_rate:,.1f} {row.work_unit}/s",
        NOTHING if row.work_ratio is None else f"{row.work_ratio:.0%}",
        NOTHING if row.ls_cpus is None else f"{row.ls_cpus:.2f}",
        NOTHING if row.be_cpus is None else f"{row.be_cpus:.2f}",
        format_ms(row.late_p99_ms),
    )


def format_table(rows: Sequence[Row]) -> str:
    """Return *rows* as a text table."""
    lines = [HEADINGS, *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    text = []
    for line in lines:
        first = line[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        text.append("  ".join((first, *rest)).rstrip())
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)


def verdicts(phases: Sequence[Phase]) -> list[str]:
    """Return one sentence per managed job, and one on the quota loop, with results and goals."""
    rows = {row.title: row for row in summarise(phases)}
    pairs = {p.title: p.against for p in phases if p.against}
    alone = rows.get("alone")
    sentences = [
        _verdict(rows[title], rows[against], alone) for title, against in pairs.items() if against
    ]
    loops = [phase for phase in phases if phase.key.startswith("loop ")]
    return sentences + ([_loop_verdict(loops)] if loops else [])


def _loop_verdict(loops: Sequence[Phase]) -> str:
    """Return whether best-effort's CPU use followed the sweet point, and the loop's stability."""
    used = [row.be_cpus for row in summarise(loops)]
    known = [cpus for cpus in used if cpus is not None]
    text = ", then ".join(f"{cpus:.2f}" for cpus in known)
    titles = ", ".join(phase.title.rpartition(", ")[2] for phase in loops)
    calm = ", ".join(f"{longest_calm_s(phase, CALM):.0f} s" for phase in loops)
    missed = []
    if not (len(known) == len(loops) and known[0] < known[1] > known[2]):
        missed.append("a higher sweet point did not give best-effort more")
    if not any(longest_calm_s(phase, CALM) >= CALM_S for phase in loops):
        missed.append(f"the goal is {CALM_S:.0f} s at a stretch")
    return (
        f"quota loop only: best-effort used {text} CPUs at sweet points of {titles}; the filtered "
        f"deviation stayed within +-{CALM} for {calm} at a stretch." + _end(missed)
    )


def _verdict(managed: Row, plain: Row, alone: Row | None) -> str:
    facts: list[str] = []
    missed: list[str] = []
    if managed.p99_ms and plain.p99_ms:
        facts.append(
            f"LS p99 {format_ms(managed.p99_ms)}, unmanaged {format_ms(plain.p99_ms)}, alone "
            f"{format_ms(alone.p99_ms if alone else None)}"
        )
        harm = plain.p99_ms - alone.p99_ms if alone and alone.p99_ms else None
        if harm is not None and harm > HARMLESS * plain.p99_ms:
            removed = min(1.0, (plain.p99_ms - managed.p99_ms) / harm)
            facts.append(f"{removed:.0%} of the harm removed")
            if removed < HARM_REMOVED:
                missed.append(f"the goal is {HARM_REMOVED:.0%} of the harm")
        elif harm is not None:
            facts.append("the job does no harm here")
    if managed.violations is not None:
        within = 1 - managed.violations
        facts.append(
            f"run-queue latency within its sweet points (p99 of waits "
            f"{format_ms(managed.sweet_point_ms)}, of arrivals "
            f"{format_ms(managed.delay_sweet_point_ms)}) in {within:.0%} of {managed.windows} "
            "one-second windows"
        )
        if within < WINDOWS_WITHIN:
            missed.append(f"the goal is {WINDOWS_WITHIN:.0%} of the windows")
    else:
        missed.append("the run-queue latency was not measured")
    if managed.work_ratio is not None:
        facts.append(f"best-effort work kept {managed.work_ratio:.0%}")
        if managed.work_ratio < WORK_KEPT:
            missed.append(f"the goal is {WORK_KEPT:.0%} of the work")
    result = f"{managed.title}: {', '.join(facts) or 'nothing measured'}.{_end(missed)}"
    rows = [row for row in (alone, plain, managed) if row is not None]
    return result + _busy(rows)


def _busy(rows: Sequence[Row]) -> str:
    """Return a warning if other work or the hypervisor disturbed one of *rows*."""
    steal = max((row.steal_cpus or 0.0 for row in rows), default=0.0)
    late_ms = max((row.late_p99_ms or 0.0 for row in rows), default=0.0)
    if steal < BUSY_STEAL_CPUS and late_ms < BUSY_LATE_MS:
        return ""
    return (
        f" The machine was busy (the hypervisor took {steal:.2f} CPUs, the client sent "
        f"{format_ms(late_ms)} late at p99): latencies contain that, so repeat this on a quiet one."
    )


def _end(missed: Sequence[str]) -> str:
    return f" Missed: {'; '.join(missed)}." if missed else " All goals met."
