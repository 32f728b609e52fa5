# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the blocks of a comparison say: medians, ratios of pairs with intervals, and verdicts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.compare.blocks import ALONE, Block

__all__ = (
    "EQUAL",
    "OURS",
    "Comparison",
    "Summary",
    "compare",
    "is_usable",
    "objective_ms",
    "summarise",
)

OURS = "sweetpoint"
EQUAL = "no difference shown"
# Blocks whose accounts differ more from the wall clock, or that the hypervisor disturbed more.
_MOST_UNACCOUNTED = 0.05
_MOST_STEAL = 0.05
_LEAST_OBJECTIVE_MS = 2.0
_RESAMPLES = 4000
_SEED = 1


def is_usable(block: Block) -> bool:
    """Return whether the accounts of *block* can be believed."""
    return abs(block.unaccounted_ratio) <= _MOST_UNACCOUNTED and block.steal_ratio <= _MOST_STEAL


def objective_ms(blocks: Iterable[Block]) -> float:
    """Return the objective of a mix: twice the p99 of the windows alone, at least 2 ms."""
    alone = [value for block in blocks if block.policy == ALONE for value in block.p99_ms]
    return max(_LEAST_OBJECTIVE_MS, 2 * float(np.median(alone))) if alone else _LEAST_OBJECTIVE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A policy in a mix: medians of blocks with the lowest and the highest one.

    ``violated`` is the share of windows above the objective, ``work`` relative to ``sched-idle``.
    """

    policy: str
    blocks: int
    p50_ms: float
    p99_ms: tuple[float, float, float]
    violated: tuple[float, float, float]
    work: tuple[float, float, float]
    be_cpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Sweetpoint against *policy* by pairs of a round, with 95 % bootstrap intervals.

    ``violated`` is the difference of the shares of violated windows (below 0: fewer of ours),
    ``work`` the ratio of the work (above 1: more beside us).
    """

    policy: str
    pairs: int
    violated: tuple[float, float, float]
    work: tuple[float, float, float]

    @property
    def verdicts(self) -> tuple[str, str]:
        """Return the verdicts on violations and on work."""
        return _verdict(self.violated, 0.0, -1.0), _verdict(self.work, 1.0, 1.0)


def _verdict(interval: tuple[float, float, float], neutral: float, good: float) -> str:
    _, low, high = interval
    if low <= neutral <= high:
        return EQUAL
    return "better" if (low > neutral) == (good > 0) else "worse"


def share_violated(block: Block, limit_ms: float) -> float:
    """Return the share of windows of *block* with a p99 above *limit_ms*."""
    return float(np.mean([value > limit_ms for value in block.p99_ms]))


def summarise(blocks: Sequence[Block]) -> list[Summary]:
    """Return a summary for each policy of the usable *blocks* of one mix."""
    limit_ms = objective_ms(blocks)
    reference = [block.work for block in blocks if block.policy == "sched-idle"]
    full = float(np.median(reference)) if reference else 0.0
    found = []
    for policy in dict.fromkeys(block.policy for block in blocks):
        own = [block for block in blocks if block.policy == policy]
        found.append(
            Summary(
                policy=policy,
                blocks=len(own),
                p50_ms=float(np.median([block.p50_ms for block in own])),
                p99_ms=_spread([float(np.median(block.p99_ms)) for block in own]),
                violated=_spread([share_violated(block, limit_ms) for block in own]),
                work=_spread([block.work / full if full else 0.0 for block in own]),
                be_cpus=float(np.median([block.be_cpus for block in own])),
            )
        )
    return found


def compare(blocks: Sequence[Block], policy: str) -> Comparison | None:
    """Compare sweetpoint with *policy* in the usable *blocks* of one mix; ``None``: no pair."""
    limit_ms = objective_ms(blocks)
    by_round = {(block.policy, block.round): block for block in blocks}
    pairs = [
        (block, by_round[OURS, block.round])
        for block in blocks
        if block.policy == policy and (OURS, block.round) in by_round
    ]
    if not pairs:
        return None
    differences = [
        share_violated(ours, limit_ms) - share_violated(one, limit_ms) for one, ours in pairs
    ]
    # Work of zero is possible under a rule that leaves next to nothing.
    ratios = [np.log(max(ours.work, 1e-3) / max(one.work, 1e-3)) for one, ours in pairs]
    middle, low, high = _bootstrap(ratios)
    return Comparison(
        policy=policy,
        pairs=len(pairs),
        violated=_bootstrap(differences),
        work=(float(np.exp(middle)), float(np.exp(low)), float(np.exp(high))),
    )


def _bootstrap(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of *values* and its 95 % interval by resampling."""
    array = np.array(values, float)
    drawn = np.random.default_rng(_SEED).choice(array, (_RESAMPLES, len(array))).mean(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(array.mean()), float(low), float(high)


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return float(np.median(values)), float(min(values)), float(max(values))
