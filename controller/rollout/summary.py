# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The pairs of a trial as text of an annotation of the Node: made by its agent, hostile to others.

The text is bounded, so that a Node object stays small. It has no more than a verdict needs.
"""

from collections.abc import Mapping, Sequence
import itertools
import json
import math
from typing import Any

from controller.trial.blocks import Arm, Block, Pair

__all__ = ("TRIAL_KEY", "SummaryError", "decode", "encode")

# Annotation of the Node.
TRIAL_KEY = "sweetpoint.dev/trial"
_VERSION = 1
MAX_CHARS = 32 << 10
MAX_PAIRS = 64
_MAX_SERVICES = 8
_MAX_NAME_CHARS = 128
_MOST_CPUS = 1e5
_LAST_S = 253402300800.0  # the year 10000


class SummaryError(Exception):
    """The text of an annotation is not a summary; the message says what is wrong."""


def encode(pairs: Sequence[Pair]) -> str:
    """Return the summary of the last of *pairs*, at most 64, with at most eight services each."""
    rows = [_row(pair) for pair in pairs[-MAX_PAIRS:]]
    while len(text := json.dumps([_VERSION, rows], separators=(",", ":"))) > MAX_CHARS:
        del rows[0]
    return text


def _row(pair: Pair) -> list[object]:
    # Where services are many, those count that suffer most, in either arm.
    most = {name: max(_both(pair, name)) for block in pair for name in block.suffered_ratio}
    names = sorted(most, key=lambda name: (-most[name], name))[:_MAX_SERVICES]
    services = {
        name[:_MAX_NAME_CHARS]: [
            None if (value := block.suffered_ratio.get(name)) is None else round(value, 4)
            for block in pair
        ]
        for name in names
    }
    work = [round(block.best_effort_cpus, 4) for block in pair]
    return [round(min(block.began_s for block in pair), 1), work, services]


def _both(pair: Pair, name: str) -> list[float]:
    return [block.suffered_ratio.get(name, 0.0) for block in pair]


def decode(text: str) -> list[Pair]:
    """Return the pairs of the summary *text*, with what it has: services and best-effort work.

    :raises SummaryError: it is too long, not a summary, or has values that cannot be measured.
    """
    if len(text) > MAX_CHARS:
        raise SummaryError(f"longer than {MAX_CHARS} characters")
    try:
        version, rows = json.loads(text)
        if version != _VERSION:
            raise SummaryError("a version that is not known")
        if not isinstance(rows, list) or len(rows) > MAX_PAIRS:
            raise SummaryError(f"not a list of at most {MAX_PAIRS} pairs")
        pairs = [_pair(*row) for row in rows]
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        raise SummaryError("not a summary of a trial") from None
    began = [pair.enforce.began_s for pair in pairs]
    if any(first >= second for first, second in itertools.pairwise(began)):
        raise SummaryError("pairs that are not in the order of time")  # or the same one twice
    return pairs


def _pair(began_s: object, work: Any, services: Any) -> Pair:
    began = _number(began_s, _LAST_S)
    cpus = [_number(each, _MOST_CPUS) for each in work]
    if len(services) > _MAX_SERVICES or any(len(name) > _MAX_NAME_CHARS for name in services):
        raise ValueError("services")
    suffered: list[dict[str, float]] = [{} for _ in Arm]
    for name, values in services.items():
        for block, value in zip(suffered, values, strict=True):
            if value is not None:
                block[name] = _number(value, 1.0)
    made = zip(Arm, suffered, cpus, strict=True)
    return Pair(*(_block(arm, began, ratios, each) for arm, ratios, each in made))


def _number(value: object, most: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError("not a number")
    if not math.isfinite(value) or not 0 <= value <= most:
        raise ValueError("out of range")
    return float(value)


def _block(arm: Arm, began_s: float, suffered: Mapping[str, float], cpus: float) -> Block:
    return Block(
        arm=arm,
        began_s=began_s,
        measured_s=0.0,
        suffered_ratio=suffered,
        values={},
        best_effort_cpus=cpus,
        agent_cpus=0.0,
        stolen_ratio=0.0,
    )
