# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the blocks of a comparison say: medians, differences of pairs with intervals, verdicts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
import math

import numpy as np

from tests.compare.record import ALONE, Block
from tests.compare.services import SERVICES
from tests.compare.statistics import Interval, mean_interval, spread

__all__ = (
    "EQUAL",
    "FIGURES",
    "ON_CPUS",
    "ON_LINK",
    "OURS",
    "SCHED_IDLE",
    "Comparison",
    "Summary",
    "by_mix",
    "by_resource",
    "compare",
    "every_comparison",
    "median_p99_ms",
    "objective_ms",
    "ours",
    "overall",
    "summarise",
    "unusual",
)

OURS = "sweetpoint"
SCHED_IDLE = "sched-idle"
EQUAL = "no difference shown"
ON_CPUS, ON_LINK = "CPUs shared", "link shared"
FIGURES = ("p99", "violated", "work")
_LEAST_OBJECTIVE_MS = 2.0
# In ratios: a p99 of requests that were never answered, and no work at all.
_ENDLESS_MS = 10_000.0
_LEAST_WORK = 1e-3
# A block is unusual if it is farther from the median of its row than these factors.
_UNUSUAL_P99 = 2.0
_UNUSUAL_WORK = 1.25


def by_mix(blocks: Iterable[Block]) -> dict[str, list[Block]]:
    """Return *blocks* by mix, in the order of the mixes' first blocks."""
    found: dict[str, list[Block]] = {}
    for block in blocks:
        found.setdefault(block.mix, []).append(block)
    return found


def by_resource(blocks: Iterable[Block]) -> dict[str, list[Block]]:
    """Return *blocks* by what their mixes share, ``ON_CPUS`` and ``ON_LINK`` as far as they occur.

    A mean over both kinds would say nothing about either.
    """
    found: dict[str, list[Block]] = {}
    for mix, own in by_mix(blocks).items():
        on_link = SERVICES[mix.split(maxsplit=1)[0]].remote
        found.setdefault(ON_LINK if on_link else ON_CPUS, []).extend(own)
    return dict(sorted(found.items()))


def median_p99_ms(block: Block) -> float:
    """Return the median of the windows' p99 of *block*."""
    return float(np.median(block.p99_ms))


def objective_ms(blocks: Iterable[Block]) -> float:
    """Return the objective of a mix: twice the p99 of the windows alone, at least 2 ms."""
    alone = [value for block in blocks if block.policy == ALONE for value in block.p99_ms]
    return max(_LEAST_OBJECTIVE_MS, 2 * float(np.median(alone))) if alone else _LEAST_OBJECTIVE_MS


def share_violated(block: Block, limit_ms: float) -> float:
    """Return the share of windows of *block* with a p99 above *limit_ms*."""
    return float(np.mean([value > limit_ms for value in block.p99_ms]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A policy in a mix: medians of blocks with the lowest and the highest one.

    ``violated`` is the share of windows above the objective, ``work`` relative to ``sched-idle``.
    """

    policy: str
    blocks: int
    p50_ms: float
    p99_ms: Interval
    violated: Interval
    work: Interval
    be_cpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """*policy* relative to *against*, by pairs of a round, with 95 % intervals.

    ``p99`` and ``work`` are ratios (geometric means), ``violated`` is the difference of the shares
    of violated windows. ``rows`` is the number of mixes.
    """

    policy: str
    against: str
    rows: int
    pairs: int
    p99: Interval
    violated: Interval
    work: Interval

    @property
    def verdicts(self) -> Mapping[str, str]:
        """Return for each of ``FIGURES`` whether *policy* is better, worse, or neither is shown."""
        return {
            "p99": _verdict(self.p99, 1.0, more_is_better=False),
            "violated": _verdict(self.violated, 0.0, more_is_better=False),
            "work": _verdict(self.work, 1.0, more_is_better=True),
        }


def _verdict(interval: Interval, neutral: float, *, more_is_better: bool) -> str:
    _, low, high = interval
    if low <= neutral <= high:
        return EQUAL
    return "better" if (low > neutral) == more_is_better else "worse"


def summarise(blocks: Sequence[Block]) -> list[Summary]:
    """Return a summary for each policy of the usable *blocks* of one mix."""
    limit_ms = objective_ms(blocks)
    reference = [block.work for block in blocks if block.policy == SCHED_IDLE]
    full = float(np.median(reference)) if reference else 0.0
    found = []
    for policy in dict.fromkeys(block.policy for block in blocks):
        own = [block for block in blocks if block.policy == policy]
        found.append(
            Summary(
                policy=policy,
                blocks=len(own),
                p50_ms=float(np.median([block.p50_ms for block in own])),
                p99_ms=spread([median_p99_ms(block) for block in own]),
                violated=spread([share_violated(block, limit_ms) for block in own]),
                work=spread([block.work / full if full else 0.0 for block in own]),
                be_cpus=float(np.median([block.be_cpus for block in own])),
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Differences of the pairs of one mix: logarithms of ratios, and shares."""

    p99: list[float]
    violated: list[float]
    work: list[float]
    # The rounding error of a share's difference, as a standard deviation.
    share_deviation: float


def overall(blocks: Sequence[Block]) -> Iterator[Comparison]:
    """Compare each policy with sched-idle and with ours in all mixes of the usable *blocks*.

    And the agent that only observes with none: what it costs to run one.
    """
    policies = dict.fromkeys(block.policy for block in blocks if block.policy != ALONE)
    pairs = [(policy, against) for against in (SCHED_IDLE, OURS) for policy in policies]
    for policy, against in (*pairs, ("observe", "none")):
        found = None if policy == against else compare(blocks, policy, against)
        if found is not None:
            yield found


def ours(
    blocks: Iterable[Block],
    parts: Callable[[Iterable[Block]], Mapping[str, list[Block]]] = by_mix,
) -> Iterator[tuple[str, Comparison]]:
    """Yield mix, or what else *parts* divides by, and comparison of ours with each policy."""
    for name, own in parts(blocks).items():
        for policy in dict.fromkeys(block.policy for block in own):
            found = None if policy in (OURS, ALONE) else compare(own, OURS, policy)
            if found is not None:
                yield name, found


def every_comparison(blocks: Sequence[Block]) -> dict[tuple[str, str, str], Comparison]:
    """Return all comparisons by mix or group of mixes, policy, and what it is compared with.

    sched-idle against ours is left out: it says what ours against sched-idle says.
    """
    found = {
        (group, each.policy, each.against): each
        for group, own in by_resource(blocks).items()
        for each in overall(own)
        if (each.policy, each.against) != (SCHED_IDLE, OURS)
    }
    found |= {(mix, each.policy, each.against): each for mix, each in ours(blocks)}
    return found


def compare(blocks: Sequence[Block], policy: str, against: str) -> Comparison | None:
    """Compare two policies in all mixes of the usable *blocks*; ``None``: no pair.

    Each mix counts the same. The interval is for these mixes: it has the spread of the rounds
    within each mix, and says nothing about other mixes.
    """
    rows = [row for own in by_mix(blocks).values() if (row := _row(own, policy, against))]
    if not rows:
        return None
    return Comparison(
        policy=policy,
        against=against,
        rows=len(rows),
        pairs=sum(len(row.p99) for row in rows),
        p99=_ratio(mean_interval([row.p99 for row in rows])),
        violated=_share(
            mean_interval([row.violated for row in rows], max(row.share_deviation for row in rows))
        ),
        work=_ratio(mean_interval([row.work for row in rows])),
    )


def _row(blocks: Sequence[Block], policy: str, against: str) -> _Row | None:
    limit_ms = objective_ms(blocks)
    by_round = {(block.policy, block.round): block for block in blocks}
    pairs = [
        (block, by_round[against, block.round])
        for block in blocks
        if block.policy == policy and (against, block.round) in by_round
    ]
    if not pairs:
        return None
    windows = min(len(block.p99_ms) for pair in pairs for block in pair)
    return _Row(
        p99=[_log_ratio(*(min(median_p99_ms(b), _ENDLESS_MS) for b in pair)) for pair in pairs],
        violated=[
            share_violated(one, limit_ms) - share_violated(other, limit_ms) for one, other in pairs
        ],
        work=[_log_ratio(*(max(b.work, _LEAST_WORK) for b in pair)) for pair in pairs],
        # Two independent values that are rounded to 1/n: each has a variance of 1/(12 n^2).
        share_deviation=math.sqrt(2 / 12) / windows,
    )


def _log_ratio(one: float, other: float) -> float:
    return math.log(one / other)


def _ratio(interval: Interval) -> Interval:
    middle, low, high = interval
    return math.exp(middle), math.exp(low), math.exp(high)


def _share(interval: Interval) -> Interval:
    middle, low, high = interval
    return middle, max(-1.0, low), min(1.0, high)


def unusual(blocks: Sequence[Block]) -> Iterator[tuple[Block, float, float]]:
    """Yield blocks far from the median of their mix and policy: block, factor of p99, of work."""
    for own in by_mix(blocks).values():
        for policy in dict.fromkeys(block.policy for block in own):
            row = [block for block in own if block.policy == policy]
            p99_ms = float(np.median([min(median_p99_ms(b), _ENDLESS_MS) for b in row]))
            work = float(np.median([max(b.work, _LEAST_WORK) for b in row]))
            for block in row:
                p99_factor = min(median_p99_ms(block), _ENDLESS_MS) / p99_ms
                work_factor = max(block.work, _LEAST_WORK) / work
                if _is_far(p99_factor, _UNUSUAL_P99) or _is_far(work_factor, _UNUSUAL_WORK):
                    yield block, p99_factor, work_factor


def _is_far(factor: float, most: float) -> bool:
    return not 1 / most <= factor <= most
