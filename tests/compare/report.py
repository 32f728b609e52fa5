# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""docs/BENCHMARKS.md from the record of a comparison."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
import math

import numpy as np

from controller.demo.table import format_ms
from controller.page.words import state_words
from tests.compare.policies import DEFAULT_POLICIES, POLICIES
from tests.compare.prose import ELSEWHERE, INTRODUCTION, LIMITS, METHOD, WHY_THEN
from tests.compare.record import ALONE, Block, Record, is_usable
from tests.compare.results import (
    EQUAL,
    OURS,
    SCHED_IDLE,
    Comparison,
    by_mix,
    by_resource,
    every_comparison,
    median_p99_ms,
    objective_ms,
    ours,
    overall,
    summarise,
    unusual,
)
from tests.compare.statistics import Interval

__all__ = ("figure_text", "render")

_MOST_UNUSUAL = 20


def render(record: Record, pictures: Sequence[str] = (), before: Record | None = None) -> str:
    """Return the page; *pictures* are the names of image files beside it, *before* an earlier run.

    :raises ValueError: the record has no usable block.
    """
    usable = record.usable
    if not usable:
        raise ValueError("no usable block")
    lines = [
        "# Benchmarks",
        "",
        *INTRODUCTION,
        "",
        *_in_short(usable),
        "",
        *(f"![p99 relative to alone, and work, by policy]({name})" for name in pictures),
        "",
        "## Conditions",
        "",
        *(f"- {name}: {value}" for name, value in record.facts.items()),
        f"- mixes: {', '.join(by_mix(usable))}",
        *_counts(record, usable),
        "",
        *_again(record),
        "",
        "## Mixes together",
        "",
        *_overall(usable),
        "",
        "## Method",
        "",
        *METHOD,
        "",
        *_worse(usable),
        "",
        *_sched_idle(usable),
        "",
        "## Verdicts by mix",
        "",
        "sweetpoint relative to each policy: below 1 its p99 is lower, above 1 more work is done.",
        "",
        *_verdicts(usable),
        "",
        *([] if before is None else _agreement(before, usable)),
        "## Blocks far from the median of their row",
        "",
        *_unusual(usable),
        "",
        "## Limits",
        "",
        *LIMITS,
        "",
        "## What else to compare",
        "",
        *ELSEWHERE,
    ]
    for mix, own in by_mix(usable).items():
        lines += ["", *_section(mix, own)]
    return "\n".join(lines) + "\n"


def _again(record: Record) -> Iterator[str]:
    blocks = record.usable
    have = [each for each in POLICIES if any(block.policy == each for block in blocks)]
    options = "" if set(have) == set(DEFAULT_POLICIES) else policy_options(have)
    yield "This does it again, with the machine to itself:"
    yield ""
    yield f"    make compare{options}"
    yield ""
    if options:
        yield "Without `ARGS` the comparison has fewer policies and takes an hour."
    yield "`--rounds 3` makes it shorter. `--continue` goes on with one that was broken off,"
    yield "`--render` makes this page of kept blocks, `--help` names the other options."


def policy_options(policies: Iterable[str]) -> str:
    """Return the options of ``make compare`` for *policies*."""
    options = " ".join(f"--policy '{each}'" for each in policies)
    return f' ARGS="{options}"'


def _in_short(blocks: Sequence[Block]) -> Iterator[str]:
    found = [each for _, each in ours(blocks) if each.against == SCHED_IDLE]
    equal = sum("better" not in each.verdicts.values() for each in found)
    yield f"In {equal} of {len(found)} mixes `cpu.idle` alone is as good as sweetpoint or better:"
    yield "[which, and why one would run it then](#where-sched-idle-alone-is-as-good)."
    own = [block for block in blocks if block.policy == OURS]
    limited = sum(block.writes > 0 for block in own)
    yield f"The agent limited the CPUs of the job in {limited} of {len(own)} blocks; in the others"
    yield "it set `cpu.idle` and watched, and on the link it set the tiers."


def _counts(record: Record, usable: Sequence[Block]) -> Iterator[str]:
    wrong = Counter(block.policy for block in record.blocks if not is_usable(block))
    wrong.update(failure.policy for failure in record.failures)
    yield (
        f"- blocks: {len(usable)} used, {wrong.total()} thrown away: CPU accounts that differ from "
        f"the wall clock by more than 5 %, or as much of it stolen "
        f"({len(record.blocks) - len(usable)}), or a program or a rule that failed "
        f"({len(record.failures)})"
    )
    if wrong:
        by_policy = ", ".join(f"{policy} {count}" for policy, count in wrong.most_common())
        yield f"- thrown away by policy: {by_policy}"
    reasons = Counter(failure.reason for failure in record.failures)
    yield from (f"- failed {count} times: {reason}" for reason, count in reasons.most_common(5))


def _overall(blocks: Sequence[Block]) -> Iterator[str]:
    yield "| group | policy | against | mixes | pairs | p99 | violated windows | work |"
    yield "|---|---|---|---|---|---|---|---|"
    for group, own in by_resource(blocks).items():
        for each in overall(own):
            yield f"| {group} | {each.policy} | {each.against} | {each.rows} | {_cells(each)} |"


def _worse(blocks: Sequence[Block]) -> Iterator[str]:
    yield "## Where sweetpoint is worse"
    yield ""
    whole = (
        (f"{group}, together", each) for group, each in ours(blocks, by_resource) if each.rows > 1
    )
    worse = [
        f"- {mix}, than {found.against}: {_NAMES[figure]} {figure_text(found, figure)}"
        for mix, found in (*whole, *ours(blocks))
        for figure, verdict in found.verdicts.items()
        if verdict == "worse"
    ]
    yield from worse or ["In no mix and than no policy was it shown to be worse."]


def _sched_idle(blocks: Sequence[Block]) -> Iterator[str]:
    yield "## Where sched-idle alone is as good"
    yield ""
    yield "sweetpoint was shown to be better in none of the three figures:"
    yield ""
    equal = [
        f"- {mix}: "
        + ", ".join(f"{_NAMES[figure]} {figure_text(found, figure)}" for figure in found.verdicts)
        for mix, found in ours(blocks)
        if found.against == SCHED_IDLE and "better" not in found.verdicts.values()
    ]
    yield from equal or ["- none of the mixes"]
    yield ""
    yield from WHY_THEN


def _verdicts(blocks: Sequence[Block]) -> Iterator[str]:
    yield "| mix | against | pairs | p99 | violated windows | work |"
    yield "|---|---|---|---|---|---|"
    for mix, found in ours(blocks):
        yield f"| {mix} | {found.against} | {_cells(found)} |"


_NAMES = {"p99": "p99", "violated": "violated windows", "work": "work"}


def _cells(found: Comparison) -> str:
    figures = (
        figure_text(found, figure) + ("" if verdict == EQUAL else f": {verdict}")
        for figure, verdict in found.verdicts.items()
    )
    return f"{found.pairs} | {' | '.join(figures)}"


def figure_text(found: Comparison, figure: str) -> str:
    """Return one of ``FIGURES`` with its interval, shares in percentage points."""
    interval: Interval = getattr(found, figure)
    if figure == "violated":
        # The sum makes a negative zero positive.
        middle, low, high = (round(100 * value, 1) + 0.0 for value in interval)
        return f"{middle:+.1f} [{low:+.1f}, {high:+.1f}]"
    middle, low, high = interval
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]"


def _agreement(before: Record, blocks: Sequence[Block]) -> Iterator[str]:
    mixes = set(by_mix(before.usable)) & set(by_mix(blocks))
    then, now = (
        every_comparison([block for block in run if block.mix in mixes])
        for run in (before.usable, blocks)
    )
    differ, same, opposite = [], 0, 0
    for (where, policy, against), found in now.items():
        old = then.get((where, policy, against))
        if old is None:
            continue
        for figure, verdict in found.verdicts.items():
            if verdict == old.verdicts[figure]:
                same += 1
                continue
            opposite += EQUAL not in (verdict, old.verdicts[figure])
            differ.append(
                f"| {where} | {policy} | {against} | {_NAMES[figure]} "
                f"| {figure_text(old, figure)}: {old.verdicts[figure]} "
                f"| {figure_text(found, figure)}: {verdict} |"
            )
    yield "## An earlier run"
    yield ""
    once = len(differ) - opposite
    yield f"Blocks of {before.facts.get('date')}, commit {before.facts.get('commit')}. Of the"
    yield f"{same + len(differ)} verdicts on the {len(mixes)} mixes that both runs have, {same} are"
    yield f"the same, {once} show a difference in one run only, and {opposite} are opposite."
    yield ""
    if differ:
        yield "| mix | policy | against | figure | then | now |"
        yield "|---|---|---|---|---|---|"
        yield from differ
        yield ""


def _unusual(blocks: Sequence[Block]) -> Iterator[str]:
    found = sorted(unusual(blocks), key=lambda each: -abs(math.log(each[1])))
    if not found:
        yield "None: every p99 is within a factor of 2 of the median of its mix and policy, and all"
        yield "work within 1.25."
        return
    yield "A p99 beyond a factor of 2 of the median of its mix and policy, or work beyond 1.25:"
    yield f"{len(found)} of {len(blocks)} blocks, all used, at most {_MOST_UNUSUAL} of them below."
    yield "The quota is the lowest that was seen; ticks are the agent's, by the state of its cpu"
    yield "channel."
    yield ""
    yield (
        "| mix | policy | round | p99 | of the median | work, of the median | steal "
        "| quota writes | squeezes | lowest quota | ticks |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for block, p99_factor, work_factor in found[:_MOST_UNUSUAL]:
        lowest = block.lowest_quota_cpus
        ticks = ", ".join(
            f"{state_words(state)} {n}" for state, n in block.agent_ticks.items() if n
        )
        yield (
            f"| {block.mix} | {block.policy} | {block.round} | {_ms(median_p99_ms(block))} "
            f"| {p99_factor:.2f} | {work_factor:.2f} | {block.steal_ratio:.1%} | {block.writes} "
            f"| {block.squeezes} | {'-' if lowest is None else f'{lowest:.2f} CPUs'} "
            f"| {ticks or '-'} |"
        )


def _section(mix: str, blocks: Sequence[Block]) -> Iterator[str]:
    yield f"## {mix}"
    yield ""
    served = float(np.median([block.ls_cpus for block in blocks]))
    yield f"Objective {format_ms(objective_ms(blocks))}; the service used {served:.2f} CPUs."
    yield "Medians of blocks (lowest to highest)."
    yield ""
    yield "| policy | blocks | p50 | p99 | violated windows | work | CPUs of the job |"
    yield "|---|---|---|---|---|---|---|"
    for each in summarise(blocks):
        violated = [f"{value:.0%}" for value in each.violated]
        work = [f"{value:.2f}" for value in each.work]
        cells = [
            _ms(each.p50_ms),
            *(
                f"{middle} ({low} to {high})"
                for middle, low, high in (map(_ms, each.p99_ms), violated, work)
            ),
        ]
        if each.policy == ALONE:
            cells[-1] = "-"
        yield f"| {each.policy} | {each.blocks} | {' | '.join(cells)} | {each.be_cpus:.2f} |"


def _ms(value: float) -> str:
    return format_ms(value) if math.isfinite(value) else "no answer"
