# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a demonstration shows, per job: better, worse, or that one cannot tell.

A result is good or bad only where its 95 % interval over the rounds lies on one side of the limit.
One round has no interval, so nothing follows from it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
import math

from controller.demo.results import MemoryRun, Phase, Row, longest_calm_s, rounds, summarise
from controller.demo.table import NOTHING, format_ms
from controller.trial.interval import Interval, mean_interval, ratio_interval

__all__ = (
    "WINDOWS_WITHIN",
    "Tone",
    "Verdict",
    "disturbance",
    "memory_sentence",
    "sentence",
    "verdicts",
)

# Goals of a managed phase: the part of what the job adds to p99 that has to go, the share of
# windows within the sweet points, the share of the unmanaged batch work.
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


class Tone(StrEnum):
    """What follows from a result; the values are CSS classes of the page."""

    GOOD = "good"
    UNSURE = "unsure"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One result: a figure, what it means, and the numbers behind it."""

    title: str
    figure: str
    says: str
    details: tuple[str, ...] = ()
    tone: Tone = Tone.UNSURE


def verdicts(phases: Sequence[Phase]) -> list[Verdict]:
    """Return three results per managed job, and one on the quota loop."""
    each_round = [{row.title: row for row in summarise(some)} for some in rounds(phases)]
    pairs = {p.title: p.against for p in phases if p.against}
    found: list[Verdict] = []
    for managed, plain in pairs.items():
        found += [
            _latency(managed, plain, each_round),
            _windows(managed, [rows[managed] for rows in each_round if managed in rows]),
            _work(managed, [rows[managed] for rows in each_round if managed in rows]),
        ]
    loops = [phase for phase in phases if phase.key.startswith("loop ")]
    return found + ([_loop(loops)] if loops else [])


def sentence(verdict: Verdict) -> str:
    """Return *verdict* as a line of text."""
    word = {Tone.GOOD: "good", Tone.UNSURE: "cannot tell", Tone.BAD: "bad"}[verdict.tone]
    details = f" ({'; '.join(verdict.details)})" if verdict.details else ""
    return f"[{word}] {verdict.title}: {verdict.figure} {verdict.says}{details}"


def memory_sentence(runs: Sequence[MemoryRun]) -> str:
    """Return what the memory phases show, an unmanaged and a managed one."""
    plain, managed = runs
    if plain.lived:
        return "memory: nothing is shown, because the service lived without sweetpoint too"
    died = f"the kernel ended the service after {plain.seconds:.0f} s, for want of memory"
    if not managed.lived:
        return f"memory: {died}; with sweetpoint too, after {managed.seconds:.0f} s"
    return (
        f"memory: unmanaged, {died}; managed, it lives with its {managed.held_mib} MiB, and "
        f"{managed.jobs_ended} processes of batch work were ended instead"
    )


def disturbance(phases: Sequence[Phase]) -> str | None:
    """Return a warning if other work or the hypervisor disturbed the measurement."""
    rows = summarise(phases)
    steal = max((row.steal_cpus or 0.0 for row in rows), default=0.0)
    late_ms = max((row.late_p99_ms or 0.0 for row in rows), default=0.0)
    if steal < BUSY_STEAL_CPUS and late_ms < BUSY_LATE_MS:
        return None
    return (
        f"The machine was busy: the hypervisor took {steal:.2f} CPUs, and the client sent "
        f"{format_ms(late_ms)} late at p99. Latencies contain that, so repeat this on a quiet one."
    )


def _latency(managed: str, plain: str, each_round: Sequence[Mapping[str, Row]]) -> Verdict:
    title = f"{managed}: latency of the service"
    known = [rows for rows in each_round if _p99(rows, managed) and _p99(rows, plain)]
    if not known:
        return Verdict(title=title, figure=NOTHING, says="The latency was not measured.")
    ratio = ratio_interval([(_p99(rows, managed), _p99(rows, plain)) for rows in known])
    harm = _harm(plain, known)
    alone, before, after = (_middle(known, name) for name in ("alone", plain, managed))
    details = [f"p99 {format_ms(after)} managed, {format_ms(before)} unmanaged"]
    if alone is not None:
        details[0] += f", {format_ms(alone)} alone"
    details.append(f"managed / unmanaged {_interval(ratio, len(known))}")
    tone, figure = Tone.UNSURE, format_ms(after)
    if ratio[2] < 1:
        tone, figure = Tone.GOOD, f"{1 / ratio[0]:.3g}\N{MULTIPLICATION SIGN} lower"
        says = f"p99 than without control, outside of the scatter of {len(known)} rounds."
        if harm and alone is not None and before is not None and before > alone:
            removed = min(1.0, (before - (after or 0.0)) / (before - alone))
            goal = "met" if removed >= HARM_REMOVED else "missed"
            details.append(f"{removed:.0%} of the harm removed; goal {HARM_REMOVED:.0%}: {goal}")
    elif ratio[1] > 1:
        tone, figure = Tone.BAD, f"{ratio[0]:.3g}\N{MULTIPLICATION SIGN} higher"
        says = f"p99 than without control, outside of the scatter of {len(known)} rounds."
    else:
        scatter = "the scatter of " + ("one round" if len(known) == 1 else f"{len(known)} rounds")
        says = f"at p99. One cannot tell a change from {scatter}."
        if harm is False:
            says = f"at p99. No harm to remove; within {scatter}."
        if len(known) == 1:
            says += " An interval needs several, three at least."
    return Verdict(title=title, figure=figure, says=says, details=tuple(details), tone=tone)


def _harm(plain: str, known: Sequence[Mapping[str, Row]]) -> bool | None:
    """Return whether the job hurts the service; ``None``: not known, as without its p99 alone."""
    pairs = [(_p99(rows, plain), _p99(rows, "alone")) for rows in known if _p99(rows, "alone")]
    if not pairs:
        return None
    middle, low, _ = ratio_interval(pairs)
    if middle <= 1 / (1 - HARMLESS):
        return False
    return True if low > 1 else None


def _windows(managed: str, rows: Sequence[Row]) -> Verdict:
    known = [row for row in rows if row.violations is not None]
    shares = [1 - row.violations for row in known if row.violations is not None]
    sweet_points = ""
    if known:
        sweet_points = (
            f"sweet points: p99 of waits {format_ms(known[0].sweet_point_ms)}, of arrivals "
            f"{format_ms(known[0].delay_sweet_point_ms)}"
        )
    return _part(
        f"{managed}: time within the sweet points",
        shares,
        WINDOWS_WITHIN,
        f"of {sum(row.windows for row in known)} one-second windows",
        sweet_points,
    )


def _work(managed: str, rows: Sequence[Row]) -> Verdict:
    ratios = [row.work_ratio for row in rows if row.work_ratio is not None]
    title, of = f"{managed}: batch work kept", "of the work without control"
    return _part(title, ratios, WORK_KEPT, of, most=math.inf)


def _part(
    title: str, parts: Sequence[float], goal: float, of: str, detail: str = "", most: float = 1.0
) -> Verdict:
    """Return the verdict on *parts*, one of each round, whose *goal* is a least value."""
    if not parts:
        return Verdict(title=title, figure=NOTHING, says="This was not measured.")
    # The interval ends where no part can be.
    middle, low, high = mean_interval([parts])
    interval = middle, max(low, 0.0), min(high, most)
    tone = Tone.UNSURE
    if interval[1] >= goal:
        tone = Tone.GOOD
    elif interval[2] < goal:
        tone = Tone.BAD
    result = {Tone.GOOD: "met", Tone.BAD: "missed"}.get(tone, "one cannot tell")
    details = [detail] if detail else []
    return Verdict(
        title=title,
        figure=f"{interval[0]:.0%}",
        says=f"{of}; goal {goal:.0%}: {result}.",
        details=(*details, _interval(interval, len(parts), "{:.0%}".format)),
        tone=tone,
    )


def _loop(loops: Sequence[Phase]) -> Verdict:
    """Return whether batch work's CPU use followed the sweet point, and the loop's stability."""
    used = [row.be_cpus for row in summarise(loops)]
    known = [cpus for cpus in used if cpus is not None]
    calm = [longest_calm_s(phase, CALM) for phase in loops]
    titles = ", ".join(phase.title.rpartition(", ")[2] for phase in loops)
    missed = []
    if not (len(known) == len(loops) and known[0] < known[1] > known[2]):
        missed.append("a higher sweet point did not give batch work more")
    if max(calm) < CALM_S:
        missed.append(f"the goal is {CALM_S:.0f} s at a stretch")
    return Verdict(
        title="quota loop alone",
        figure=f"{max(calm):.0f} s",
        says=f"at a stretch within ±{CALM} of the sweet point, in filtered deviation. "
        + (f"Missed: {'; '.join(missed)}." if missed else "All goals met."),
        details=(
            f"sweet points {titles}",
            f"batch work used {', then '.join(f'{cpus:.2f}' for cpus in known)} CPUs",
            f"at a stretch: {', '.join(f'{seconds:.0f} s' for seconds in calm)}",
        ),
        tone=Tone.BAD if missed else Tone.GOOD,
    )


def _p99(rows: Mapping[str, Row], title: str) -> float:
    """Return the p99 of a phase of a round; 0 if there is none."""
    return (rows[title].p99_ms or 0.0) if title in rows else 0.0


def _middle(known: Sequence[Mapping[str, Row]], title: str) -> float | None:
    """Return the geometric mean over the rounds, so that the ratio of two is that of the pairs."""
    values = [value for rows in known if (value := _p99(rows, title))]
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def _interval(
    interval: Interval, count: int, words: Callable[[float], str] = "{:.2g}".format
) -> str:
    middle, low, high = map(words, interval)
    if count < 2:
        return f"{middle} in one round, without an interval"
    return f"{middle}, with 95% confidence {low} to {high} ({count} rounds)"
