# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The result of a demonstration as a text table."""

from collections.abc import Sequence

from controller.demo.results import Row

__all__ = ("HEADINGS", "NOTHING", "cells", "format_ms", "format_table")

HEADINGS = (
    "phase",
    "service p50",
    "service p99",
    "wait p99",
    "arrival p99",
    "over sweet point",
    "batch work",
    "of unmanaged",
    "service CPUs",
    "batch CPUs",
    "client late",
)
NOTHING = "-"


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
