# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The decisions of an agent as a table, in which equal ones in succession are one row."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
import re
from typing import Any

from controller.page.document import Cell, Table
from controller.page.quantities import lasting, spaced
from controller.page.view import number, records, text

__all__ = ("Folded", "decision_table", "fold")

_MOST_TEXT = 400
_FIGURE = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?(?:ns|us|ms|s)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """``count`` decisions in succession on one subject that differ in figures only.

    ``text`` is that of the last one; the times are of CLOCK_MONOTONIC.
    """

    subject: str
    text: str
    count: int
    first_ns: float
    last_ns: float


def fold(decisions: Iterable[Mapping[str, Any]]) -> list[Folded]:
    """Return *decisions*, the oldest first, as rows, the newest first."""
    folded: list[Folded] = []
    for each in decisions:
        subject, says = text(each.get("subject")), text(each.get("text"), _MOST_TEXT)
        first_ns = time_ns = number(each.get("time_ns")) or 0.0
        count = 1
        if folded and (subject, _kind(says)) == (folded[-1].subject, _kind(folded[-1].text)):
            before = folded.pop()
            count, first_ns = before.count + 1, before.first_ns
        folded.append(
            Folded(subject=subject, text=says, count=count, first_ns=first_ns, last_ns=time_ns)
        )
    return folded[::-1]


def decision_table(status: Mapping[str, Any], most: int) -> Table | None:
    """Return the last *most* rows of the decisions of *status*; ``None`` without any."""
    now_ns = number(status.get("time_ns")) or 0.0
    rows = fold(records(status.get("decisions")))[:most]
    if not rows:
        return None
    return Table(
        caption="Newest first. Decisions in succession that differ in their figures only are one "
        "row, with the figures of the last one.",
        headings=("when", "about", "decision", "times"),
        rows=[_row(each, now_ns) for each in rows],
        left=3,
    )


def _row(decision: Folded, now_ns: float) -> Sequence[Cell]:
    when = f"{lasting(now_ns - decision.last_ns)}\N{NO-BREAK SPACE}ago"
    often = str(decision.count)
    if decision.count > 1:
        often += f" in {lasting(decision.last_ns - decision.first_ns)}"
    # Many texts begin with their subject, as in a log.
    says = decision.text.removeprefix(f"{decision.subject} ")
    return (when, decision.subject, spaced(says), often)


def _kind(says: str) -> str:
    return _FIGURE.sub("0", says)
