# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Runs summed up per scenario and policy, as a text table or as records for JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controller.simulation.run import Run

__all__ = ("Estimate", "Summary", "format_table", "summarise")

_RESAMPLES = 2000
_CONFIDENCE = 0.95
_HEADINGS = ("policy", "violating %", "work CPUs", "writes/min", "culprit %", "evicted")
_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds with a 95 % interval by bootstrap; the interval is the mean for one."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The runs of one policy in one scenario.

    ``violating`` is the share of seconds in which a service exceeded its objective, ``work_cpus``
    the jobs' work in effective CPUs, ``writes_per_min`` the knobs written per minute. ``right`` is
    the share of seconds with a limited job in which a harmful one was limited most; ``None``: no
    such second. ``evicted`` and ``wrongly_evicted`` count jobs in all runs; ``job_work_cpus`` is
    the mean work of each job.
    """

    scenario: str
    policy: str
    seeds: int
    violating: Estimate
    work_cpus: Estimate
    writes_per_min: Estimate
    right: Estimate | None
    evicted: int
    wrongly_evicted: int
    job_work_cpus: tuple[float, ...]


def summarise(runs: Iterable[Run]) -> list[Summary]:
    """Return a summary per scenario and policy, in the order of *runs*."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for each in runs:
        groups.setdefault((each.scenario, each.policy), []).append(each)
    return [_summary(scenario, policy, group) for (scenario, policy), group in groups.items()]


def _summary(scenario: str, policy: str, group: Sequence[Run]) -> Summary:
    right = [each.right for each in group if each.right is not None]
    evicted = [harmful for each in group for _, harmful in each.evicted]
    work = np.array([each.job_work_cpus for each in group]).mean(axis=0)
    return Summary(
        scenario=scenario,
        policy=policy,
        seeds=len(group),
        violating=_estimate([each.violating for each in group]),
        work_cpus=_estimate([each.work_cpus for each in group]),
        writes_per_min=_estimate([each.writes_per_min for each in group]),
        right=_estimate(right) if right else None,
        evicted=len(evicted),
        wrongly_evicted=evicted.count(False),
        job_work_cpus=tuple(work.tolist()),
    )


def format_table(summaries: Sequence[Summary], titles: Mapping[str, str]) -> str:
    """Return *summaries* as text, a block per scenario under its title."""
    blocks: dict[str, list[Sequence[str]]] = {}
    for each in summaries:
        blocks.setdefault(each.scenario, [_HEADINGS]).append(_cells(each))
    rows = [row for block in blocks.values() for row in block]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    text = []
    for scenario, block in blocks.items():
        text.append(f"{scenario}: {titles[scenario]}")
        for row in block:
            rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
            text.append("  " + "  ".join((row[0].ljust(widths[0]), *rest)))
        text.append("")
    return "\n".join(text[:-1])


def _cells(each: Summary) -> Sequence[str]:
    return (
        each.policy,
        _format(each.violating, 100.0, 1),
        _format(each.work_cpus, 1.0, 2),
        _format(each.writes_per_min, 1.0, 1),
        _NOTHING if each.right is None else _format(each.right, 100.0, 0),
        f"{each.evicted} ({each.wrongly_evicted} wrong)" if each.evicted else _NOTHING,
    )


def _format(estimate: Estimate, scale: float, digits: int) -> str:
    text = f"{estimate.mean * scale:.{digits}f}"
    if estimate.low == estimate.high:
        return text
    return f"{text} [{estimate.low * scale:.{digits}f}, {estimate.high * scale:.{digits}f}]"


def _estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of *values* with the percentile interval of means of resampled values."""
    mean = float(np.mean(values))
    if len(values) == 1:
        return Estimate(mean, mean, mean)
    random = np.random.default_rng(0)
    chosen = random.choice(np.array(values), (_RESAMPLES, len(values)))
    tail = (1.0 - _CONFIDENCE) / 2
    low, high = np.quantile(chosen.mean(axis=1), (tail, 1.0 - tail))
    return Estimate(mean, float(low), float(high))
