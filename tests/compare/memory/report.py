# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The table of a comparison where memory is short."""

from collections.abc import Callable, Iterator, Sequence
import math

import numpy as np

from controller.demo.table import format_ms
from tests.compare.memory.policies import OURS, POLICIES
from tests.compare.memory.record import MemoryBlock, MemoryRecord
from tests.compare.statistics import Interval, mean_interval, spread

__all__ = ("lines", "work_ratio")

_LEAST_WORK = 1e-3


def work_ratio(blocks: Sequence[MemoryBlock], policy: str, against: str) -> Interval | None:
    """Return the work under *policy* relative to *against*, with its 95 % interval; None: no pair.

    It is the geometric mean of the pairs of a round.
    """
    by_round = {(each.policy, each.round): max(each.work_mib_s, _LEAST_WORK) for each in blocks}
    pairs = [
        math.log(work / by_round[against, number])
        for (name, number), work in by_round.items()
        if name == policy and (against, number) in by_round
    ]
    if not pairs:
        return None
    middle, low, high = mean_interval([pairs])
    return math.exp(middle), math.exp(low), math.exp(high) if high < 700 else math.inf


def lines(record: MemoryRecord) -> Iterator[str]:
    """Yield the conditions and a table for each mix of *record*."""
    for name, value in record.facts.items():
        yield f"- {name}: {value}"
    load = _spread([block.load for block in record.blocks], "{:.1f}".format)
    yield f"- load average of a minute before a block, which has other work too: {load}"
    yield (
        f"- blocks without a result, which a later run repeats: {len(record.failures)}, "
        f"as a program failed or began too late"
    )
    for mix in dict.fromkeys(block.mix for block in record.blocks):
        own = [block for block in record.blocks if block.mix == mix]
        yield ""
        yield f"**{mix}**"
        yield ""
        yield from _table(own)


def _table(blocks: Sequence[MemoryBlock]) -> Iterator[str]:
    yield (
        "| policy | blocks | service died: blocks, times | p99, median of windows | no answer "
        "| refaults | job, MiB/s | job relative to sweetpoint | ends by the kernel | evicted |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    names = {block.policy for block in blocks}
    for policy in (*(each for each in POLICIES if each in names), *sorted(names - set(POLICIES))):
        own = [block for block in blocks if block.policy == policy]
        died = sum(block.service_deaths > 0 for block in own)
        lost = sum(block.unanswered for block in own) / sum(block.requests for block in own)
        cells = [
            f"{died}, {sum(block.service_deaths for block in own)}",
            _spread([_median_p99_ms(block) for block in own], _ms),
            f"{lost:.1%}",
            _spread([block.refaults for block in own], "{:,.0f}".format),
            _spread([block.work_mib_s for block in own], "{:.0f}".format),
            "" if policy == OURS else _ratio(work_ratio(blocks, policy, OURS)),
            str(sum(block.job_deaths for block in own)),
            str(sum(block.evictions for block in own)),
        ]
        yield f"| {policy} | {len(own)} | {' | '.join(cells)} |"


def _median_p99_ms(block: MemoryBlock) -> float:
    return float(np.median(block.p99_ms)) if block.p99_ms else math.inf


def _spread(values: Sequence[float], text: Callable[[float], str]) -> str:
    middle, low, high = map(text, spread(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({low} to {high})"


def _ms(value: float) -> str:
    return format_ms(value) if math.isfinite(value) else "no answer"


def _ratio(interval: Interval | None) -> str:
    if interval is None:
        return ""
    middle, low, high = interval
    if math.isinf(high):
        return f"{middle:.2f}, one pair"
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"
