# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""README's table of a comparison: few policies relative to sched-idle alone, by group of mixes."""

from collections.abc import Iterator, Mapping, Sequence

from controller.demo.cgroups import DemoError
from tests.compare.record import Block
from tests.compare.report import figure_text
from tests.compare.results import (
    FIGURES,
    ON_CPUS,
    ON_LINK,
    OURS,
    SCHED_IDLE,
    by_resource,
    overall,
)

__all__ = ("insert", "insert_between", "table")

_MARK = "table of make compare"
# The page of the comparison has all policies; the first screen has room for the default of a
# cluster, the rule with the best p99, and ours. On a link the rules about CPUs change nothing.
_SHOWN: Mapping[str, Sequence[str]] = {ON_CPUS: ("none", "katalyst", OURS), ON_LINK: (OURS,)}


def table(blocks: Sequence[Block]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| relative to `cpu.idle` alone | p99 | windows above objective | batch work |"
    yield "|---|---|---|---|"
    for group, own in by_resource(blocks).items():
        rows = {each.policy: each for each in overall(own) if each.against == SCHED_IDLE}
        for policy in _SHOWN[group]:
            if policy in rows:
                p99, violated, work = (figure_text(rows[policy], each) for each in FIGURES)
                yield f"| {group}: {policy} | {p99} | {violated} points | {work} |"
    yield ""
    own = [block for block in blocks if block.policy == OURS]
    limited = sum(block.writes > 0 for block in own)
    yield f"sweetpoint limited the CPUs of the job in {limited} of {len(own)} blocks. Otherwise it"
    yield "set `cpu.idle`, and on the link the bandwidth of either side."


def insert(text: str, lines: Iterator[str]) -> str:
    """Return *text* with *lines* between the two marks of this table.

    :raises DemoError: *text* lacks a mark.
    """
    return insert_between(text, _MARK, lines)


def insert_between(text: str, mark: str, lines: Iterator[str]) -> str:
    """Return the *text* of a page with *lines* between the begin and the end of *mark*.

    :raises DemoError: *text* lacks one of them.
    """
    first, last = (f"<!-- {word}: {mark} -->\n" for word in ("begin", "end"))
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not (begin and end):
        raise DemoError(f"the page lacks a line of {first.strip()} and {last.strip()}")
    return before + begin + "".join(f"{line}\n" for line in lines) + end + after
