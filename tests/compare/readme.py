# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""README's table of a comparison: each policy relative to sched-idle alone, by group of mixes."""

from collections.abc import Iterator, Sequence

from controller.demo.cgroups import DemoError
from tests.compare.record import Block
from tests.compare.report import figure_text
from tests.compare.results import FIGURES, OURS, SCHED_IDLE, by_resource, overall

__all__ = ("insert", "table")

_BEGIN = "<!-- begin: table of make compare -->\n"
_END = "<!-- end: table of make compare -->\n"
# Of our agent, README has the mode that acts.
_LEFT_OUT = ("observe",)


def table(blocks: Sequence[Block]) -> Iterator[str]:
    """Yield the lines of the table, ours last."""
    for group, own in by_resource(blocks).items():
        yield f"| {group}, relative to `cpu.idle` | p99 | windows above objective | batch work |"
        yield "|---|---|---|---|"
        rows = [each for each in overall(own) if each.against == SCHED_IDLE]
        for each in sorted(rows, key=lambda row: row.policy == OURS):
            if each.policy not in _LEFT_OUT:
                p99, violated, work = (figure_text(each, figure) for figure in FIGURES)
                yield f"| {each.policy} | {p99} | {violated} points | {work} |"
        yield ""
    own = [block for block in blocks if block.policy == OURS]
    limited = sum(block.writes > 0 for block in own)
    yield f"sweetpoint limited the CPUs of the job in {limited} of {len(own)} blocks, else it set"
    yield "`cpu.idle`, and on the link the bandwidth of either side."


def insert(text: str, lines: Iterator[str]) -> str:
    """Return *text* with *lines* between its two marks.

    :raises DemoError: *text* lacks a mark.
    """
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise DemoError(f"README.md lacks a line of {_BEGIN.strip()} and {_END.strip()}")
    return before + _BEGIN + "".join(f"{line}\n" for line in lines) + _END + after
