# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Results: a table, a file, and the comparison of two files by the same seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
import json
from pathlib import Path
from statistics import median, stdev

from tests.plant.run import Result

__all__ = ("BASELINE", "compare", "load", "save", "table")

BASELINE = "sched-idle"


def save(path: Path, setup: str, results: Sequence[Result]) -> None:
    """Write *results* to *path*; *setup* says in words what was run."""
    data = {"setup": setup, "results": [asdict(each) for each in results]}
    path.write_text(json.dumps(data, indent=1) + "\n")


def load(path: Path) -> list[Result]:
    """Return the results in *path*.

    :raises OSError: the file cannot be read.
    :raises ValueError: it is not a file of ``save``.
    """
    data = json.loads(path.read_text())
    try:
        return [Result(**each) for each in data["results"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} has no results of this plant: {error}") from None


def _relative(results: Iterable[Result]) -> dict[tuple[str, str, int], tuple[float, float, float]]:
    """Map (scenario, policy, seed) to violated per cent, relative work and writes per minute."""
    results = list(results)
    base = {(r.scenario, r.seed): r.work_cpus for r in results if r.policy == BASELINE}
    return {
        (r.scenario, r.policy, r.seed): (
            r.violated_percent,
            r.work_cpus / (base.get((r.scenario, r.seed)) or float("nan")),
            r.writes,
        )
        for r in results
    }


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def table(results: Sequence[Result]) -> str:
    """Return a table: violated per cent / work relative to sched-idle, median (lowest-highest)."""
    cells = _relative(results)
    policies = sorted(_unique(each.policy for each in results), key=BASELINE.__eq__)
    lines = ["violated % / work relative to sched-idle alone: median (lowest to highest)"]
    lines.append("| scenario | " + " | ".join(policies) + " |")
    lines.append("|---" * (len(policies) + 1) + "|")
    for scenario in _unique(each.scenario for each in results):
        row = [scenario]
        for policy in policies:
            found = [value for key, value in cells.items() if key[:2] == (scenario, policy)]
            row.append(_cell(found))
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def _cell(found: Sequence[tuple[float, float, float]]) -> str:
    if not found:
        return ""
    violated, work, writes = ([each[n] for each in found] for n in range(3))
    text = f"{_span(violated, 1)} / {_span(work, 2)}"
    return text + (f", {median(writes):.0f} writes/min" if any(writes) else "")


def _span(values: Sequence[float], digits: int) -> str:
    text = f"{median(values):.{digits}f}"
    if len(values) > 1:
        text += f" ({min(values):.{digits}f}-{max(values):.{digits}f})"
    return text


def compare(before: Sequence[Result], after: Sequence[Result]) -> str:
    """Return, by scenario and policy, the differences of the seeds that both have.

    A difference counts if its median exceeds twice the spread (the standard deviation) of the
    differences of the seeds. With one seed there is no spread, and nothing is said.
    """
    old, new = _relative(before), _relative(after)
    pairs = [key for key in new if key in old and key[1] != BASELINE]
    lines = [
        "| scenario | policy | violated, points | work, relative | seeds |",
        "|---|---|---|---|---|",
    ]
    for scenario, policy in dict.fromkeys(key[:2] for key in pairs):
        keys = [key for key in pairs if key[:2] == (scenario, policy)]
        columns = [
            _verdict([new[key][n] - old[key][n] for key in keys], digits)
            for n, digits in ((0, 1), (1, 3))
        ]
        lines.append(f"| {scenario} | {policy} | {' | '.join(columns)} | {len(keys)} |")
    return "\n".join(lines)


def _verdict(differences: Sequence[float], digits: int) -> str:
    middle = median(differences)
    text = f"{middle:+.{digits}f}"
    if len(differences) < 2:
        return f"{text} (one seed)"
    spread = stdev(differences)
    counts = abs(middle) > 2.0 * spread and round(abs(middle), digits) > 0
    return f"{text} ({'exceeds' if counts else 'within'} 2 x {spread:.{digits}f})"
