# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks with known values."""

from collections.abc import Sequence
from dataclasses import replace

from tests.compare.record import Block

__all__ = ("BLOCK", "MIX", "blocks")

MIX = "nginx steady + ffmpeg"
BLOCK = Block(
    mix=MIX,
    policy="sched-idle",
    round=1,
    p50_ms=0.5,
    p99_ms=(1.0,) * 20,
    failed=0,
    requests=1000,
    work=10.0,
    unit="frames",
    ls_cpus=0.2,
    be_cpus=1.5,
    writes=0,
    squeezes=0,
    lowest_quota_cpus=None,
    agent_ticks={},
    unaccounted_ratio=0.01,
    steal_ratio=0.0,
)


def blocks(
    policy: str, works: Sequence[float], violated: Sequence[int], p99_ms: float = 1.0
) -> list[Block]:
    """Return a block for each of *works*, of whose 20 windows *violated* have a p99 of 9 ms."""
    return [
        replace(
            BLOCK,
            policy=policy,
            round=number,
            work=work,
            p99_ms=(9.0,) * bad + (p99_ms,) * (20 - bad),
        )
        for number, (work, bad) in enumerate(zip(works, violated, strict=True), 1)
    ]
