# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What ``sweetpoint trial`` prints: what it will do, how it goes on, and what it found."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
import math
from pathlib import Path
import statistics
import time

from controller.cli.common import clock
from controller.cli.explain_text import lasted
from controller.core.units import NS_PER_SEC, count
from controller.host.names import printable
from controller.trial.analysis import BEST_EFFORT, Finding, Kind, detectable
from controller.trial.blocks import Arm, Block, Change, Design, Pair
from controller.trial.noise import block_differences

__all__ = ("announcement", "changed", "conditions", "lines", "plain", "progress")

_HISTORY_NS = 24 * 3600 * NS_PER_SEC
# Findings of indicators, which have no verdict, are many.
_MOST_VALUES = 10


def announcement(design: Design, path: Path, data_dir: Path) -> Iterator[str]:
    """Yield what will be done, how long it takes, and what it can show."""
    enforce, pause, total = (
        lasted(round(each_s * NS_PER_SEC))
        for each_s in (design.enforce_s, design.pause_s, design.total_s)
    )
    end = clock(time.time_ns() + round(design.total_s * NS_PER_SEC))
    one, other = design.names.values()
    yield f"{design.pairs} pairs of {enforce} {one} and {pause} {other}: {total}, until {end}"
    yield f"order {design.seed}, pairs in {path}"
    yield _promise(design, data_dir)


def _promise(design: Design, data_dir: Path) -> str:
    """Return what the trial can show at the noise of the history."""
    now_ns = time.time_ns()
    try:
        noise = block_differences(data_dir, now_ns - _HISTORY_NS, now_ns, design.pause_s)
    except OSError:
        noise = {}
    found = {
        service: least
        for service, differences in noise.items()
        if (least := detectable(differences, design.pairs)) is not None
    }
    if not found:
        return "what it can show is not known: the history has too few blocks of this length"
    service, least = max(found.items(), key=lambda each: each[1])
    return (
        f"by the history of 24h it shows a difference of {100 * least:.1f} points of the time that "
        f"{printable(service)} is above its sweet point, which varies most"
    )


def progress(pair: Pair, number: int, design: Design) -> str:
    """Return the line for the *number*-th pair: the service that suffers most, and the work."""
    enforce, pause = pair
    one, other = design.names.values()
    services = sorted(
        set(enforce.suffered_ratio) | set(pause.suffered_ratio),
        key=lambda name: -pause.suffered_ratio.get(name, 0.0),
    )
    worst = [
        f"{printable(name)} above its sweet point {enforce.suffered_ratio.get(name, 0.0):.1%} of "
        f"the time {one}, {pause.suffered_ratio.get(name, 0.0):.1%} {other}"
        for name in services[:1]
    ]
    work = f"best-effort {enforce.best_effort_cpus:.2f} and {pause.best_effort_cpus:.2f} CPUs"
    return f"pair {number} of {design.pairs}: {'; '.join([*worst, work])}"


def plain(finding: Finding) -> dict[str, object]:
    """Return *finding* for JSON, which has no infinity."""
    effect = [each if math.isfinite(each) else None for each in finding.effect]
    return {**asdict(finding), "effect": effect}


def lines(
    nodes: Sequence[Sequence[Pair]], findings: Sequence[Finding], arms: Mapping[Arm, str]
) -> Iterator[str]:
    """Yield the result: a line for each of *findings*, and what was not compared.

    *arms* has their names.
    """
    blocks = [block for pairs in nodes for pair in pairs for block in pair]
    pairs = count(len(blocks) // 2, "pair")
    where = f" on {count(len(nodes), 'node')}" if len(nodes) > 1 else ""
    if not blocks:
        yield "no pair was finished, so nothing is known"
        return
    yield f"{pairs}{where}; each line: {', '.join(arms.values())}, effect with its 95 % interval"
    for finding in findings:
        if finding.kind is not Kind.VALUE:
            yield f"  {_line(finding)}: {finding.verdict}{_more(finding)}"
    values = [finding for finding in findings if finding.kind is Kind.VALUE]
    values.sort(key=lambda each: -abs(math.log(each.effect[0])))
    for finding in values[:_MOST_VALUES]:
        yield f"  {_line(finding)}"
    for field, what, unit in (
        ("agent_cpus", "the agent used", "CPUs"),
        ("service_cpus", "services used", "CPUs"),
        ("stolen_ratio", "the host took", "of the CPU time"),
    ):
        if means := conditions(blocks, field):
            yield f"  {what} {means[0]:.3f} and {means[1]:.3f} {unit}"


def conditions(blocks: Sequence[Block], field: str) -> tuple[float, float] | None:
    """Return the means of *field* over the blocks of each arm; ``None``: it was not measured."""
    found = [
        [
            value
            for block in blocks
            if block.arm == arm and (value := getattr(block, field)) is not None
        ]
        for arm in Arm
    ]
    return (statistics.fmean(found[0]), statistics.fmean(found[1])) if all(found) else None


def changed(change: Change, policy: str) -> str:
    """Return the line for what *policy* changes."""
    key, value, without = change
    return f"{key}: {value} with {policy}, {without} without it"


def _line(finding: Finding) -> str:
    middle, low, high = finding.effect
    if finding.kind is Kind.TIME:
        return (
            f"{finding.name}: above its sweet point {finding.enforce:.1%} and {finding.pause:.1%} "
            f"of the time, {100 * middle:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]"
        )
    if finding.kind is Kind.COUNT:
        return (
            f"{finding.name}: {finding.enforce:.4g} and {finding.pause:.4g}, "
            f"{middle:+.4g} [{low:+.4g}, {high:+.4g}]"
        )
    unit = " CPUs" if finding.name == BEST_EFFORT else ""
    return (
        f"{finding.name}: {finding.enforce:.4g} and {finding.pause:.4g}{unit}, "
        f"ratio {middle:.3f} [{low:.3f}, {high:.3f}]"
    )


def _more(finding: Finding) -> str:
    if finding.more_pairs is None:
        return ""
    return f"; about {count(finding.more_pairs, 'more pair')} would show an effect of this size"
