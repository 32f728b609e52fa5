# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A made-up rollout: its ConfigMaps, and trials of nodes that gain, lose or lie."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from controller.rollout.summary import Trial
from controller.trial.blocks import Block, Pair
from tests.support.trial import noisy_pairs

__all__ = ("CANDIDATE", "CURRENT", "SPEC", "pairs_from", "profile", "tried")


def profile(name: str, milliseconds: int) -> str:
    return f"name: {name}\nindicators: {{runq_p99: {{sweet_point: {milliseconds}ms}}}}\n"


CURRENT, CANDIDATE = profile("default", 5), profile("fast", 3)
SPEC = """\
candidate: fast
replaces: default
nodes: {pool: canary}
least_nodes: 3
least_pairs: 6
soak: 10m
within: 60m
"""


def tried(pairs: Sequence[Pair], hurt_s: float | None = None) -> Trial:
    """Return a trial of the candidate with *pairs*."""
    return Trial(pairs=pairs, policy="canary", replaces={"default": "fast"}, hurt_s=hurt_s)


@cache
def pairs_from(began_s: float, count: int, *, seed: int = 1, less: float = 0.3) -> Sequence[Pair]:
    """Return pairs from *began_s* on, a minute apart; enforcing takes *less* of the suffering."""
    return [
        Pair(*(_real(block, began_s + 60 * number) for block in pair))
        for number, pair in enumerate(noisy_pairs(seed, count, less))
    ]


def _real(block: Block, began_s: float) -> Block:
    suffered = {name: min(1.0, max(0.0, each)) for name, each in block.suffered_ratio.items()}
    return replace(block, began_s=began_s, suffered_ratio=suffered)
