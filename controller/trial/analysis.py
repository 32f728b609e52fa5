# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the pairs of a trial show: differences with intervals, and how many pairs an answer needs.

The two blocks of a pair follow each other, so what changes slowly is equal in both, and the order
is random, so nothing else differs on average (Fisher, The Design of Experiments, 1935). Nodes are
strata, each with a mean of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
import math
from statistics import fmean, stdev

from controller.trial.blocks import Block, Pair, Work
from controller.trial.interval import Interval, mean_interval

__all__ = ("BEST_EFFORT", "Finding", "Kind", "Verdict", "analyse", "detectable")

BEST_EFFORT = "best-effort work"
# The quantiles 0.975 and 0.8 of the normal distribution: a difference as large as both together,
# in standard errors, is shown by four of five trials.
_STANDARD_ERRORS = 1.96 + 0.84
# A smaller difference means nothing to a user, however many pairs show it.
_NO_DIFFERENCE = 0.005

_Value = Callable[[Block], float | None]


class Kind(StrEnum):
    """How the arms are compared.

    ``time``: parts of the time above a sweet point, by difference; less is better. ``work``: what
    best-effort work did, such as its CPU time, by ratio; more is better. ``count``: completed pods,
    by difference, because a block may have none; more is better. ``value``: an indicator, by ratio;
    without verdict, because a lower one is worth nothing where the sweet point is kept anyway.
    """

    TIME = "time"
    WORK = "work"
    COUNT = "count"
    VALUE = "value"


# Each of them may be 0 in a block, so it has no ratio.
_BY_DIFFERENCE = (Kind.TIME, Kind.COUNT)


class Verdict(StrEnum):
    """What enforcing makes of an outcome."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One outcome in ``pairs`` pairs.

    ``enforce`` and ``pause`` are means over the blocks. ``effect`` is enforcing less pausing
    (``Kind.TIME``, ``Kind.COUNT``), otherwise enforcing relative to pausing, with its 95 %
    interval. ``more_pairs`` is about how many more pairs would show an effect of this size;
    ``None``: it is shown, or there is none to be seen.
    """

    name: str
    kind: Kind
    pairs: int
    enforce: float
    pause: float
    effect: Interval
    verdict: Verdict
    more_pairs: int | None


def analyse(nodes: Sequence[Sequence[Pair]]) -> list[Finding]:
    """Return the findings over *nodes*: each service, best-effort work, then the indicators.

    CPU time of best-effort work comes first, then what else was counted of it.

    A pair that does not have an outcome in both blocks is left out for this outcome.
    """
    every = [pair for pairs in nodes for pair in pairs]
    services = {name for pair in every for block in pair for name in block.suffered_ratio}
    indicators = {name for pair in every for block in pair for name in block.values}
    found = [_finding(nodes, name, Kind.TIME, _suffered(name)) for name in sorted(services)]
    found.append(_finding(nodes, BEST_EFFORT, Kind.WORK, lambda block: block.best_effort_cpus))
    for work in Work:
        kind = Kind.COUNT if work is Work.PODS else Kind.WORK
        found.append(_finding(nodes, work, kind, _other_work(work)))
    found += [_finding(nodes, name, Kind.VALUE, _indicator(name)) for name in sorted(indicators)]
    return [finding for finding in found if finding is not None]


def detectable(differences: Sequence[float], pairs: int) -> float | None:
    """Return the difference that four of five trials of *pairs* pairs show.

    *differences* are those between blocks without a trial; ``None``: there are fewer than two.
    """
    if len(differences) < 2:
        return None
    return _STANDARD_ERRORS * stdev(differences) / math.sqrt(pairs)


def _suffered(name: str) -> _Value:
    return lambda block: block.suffered_ratio.get(name)


def _indicator(name: str) -> _Value:
    return lambda block: block.values.get(name)


def _other_work(work: Work) -> _Value:
    return lambda block: block.work.get(work)


def _finding(
    nodes: Sequence[Sequence[Pair]], name: str, kind: Kind, value: _Value
) -> Finding | None:
    rows = [row for pairs in nodes if (row := [*_values(pairs, kind, value)])]
    if not rows:
        return None
    every = [values for row in rows for values in row]
    compare = _minus if kind in _BY_DIFFERENCE else _log_ratio
    differences = [[compare(*values) for values in row] for row in rows]
    effect = mean_interval(differences)
    verdict = Verdict.NO_DIFFERENCE if kind is Kind.VALUE else _verdict(kind, effect)
    wanted = verdict is Verdict.NO_DIFFERENCE and kind is not Kind.VALUE
    more = _more_pairs([each for row in differences for each in row]) if wanted else None
    if kind not in _BY_DIFFERENCE:
        middle, low, high = effect
        effect = math.exp(middle), math.exp(low), math.inf if high > 700 else math.exp(high)
    return Finding(
        name=name,
        kind=kind,
        pairs=len(every),
        enforce=fmean(enforce for enforce, _ in every),
        pause=fmean(pause for _, pause in every),
        effect=effect,
        verdict=verdict,
        more_pairs=more,
    )


def _values(pairs: Sequence[Pair], kind: Kind, value: _Value) -> Iterator[tuple[float, float]]:
    for pair in pairs:
        enforce, pause = value(pair.enforce), value(pair.pause)
        if enforce is None or pause is None:
            continue
        if kind in _BY_DIFFERENCE or min(enforce, pause) > 0:  # a ratio needs both
            yield enforce, pause


def _minus(enforce: float, pause: float) -> float:
    return enforce - pause


def _log_ratio(enforce: float, pause: float) -> float:
    return math.log(enforce / pause)


def _verdict(kind: Kind, effect: Interval) -> Verdict:
    middle, low, high = effect
    if low <= 0 <= high or abs(middle) < _NO_DIFFERENCE:
        return Verdict.NO_DIFFERENCE
    less_is_better = kind is Kind.TIME
    return Verdict.BETTER if (middle < 0) is less_is_better else Verdict.WORSE


def _more_pairs(differences: Sequence[float]) -> int | None:
    """Return about how many more pairs show the mean of *differences*."""
    if len(differences) < 2 or abs(mean := fmean(differences)) < _NO_DIFFERENCE:
        return None
    needed = (_STANDARD_ERRORS * stdev(differences) / mean) ** 2
    return max(1, math.ceil(needed) - len(differences))
