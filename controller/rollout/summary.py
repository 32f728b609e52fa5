# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A trial as text of an annotation of the Node: made by its agent, hostile to others.

The text is bounded, so that a Node object stays small. It says what was compared, and has no more
of the pairs than a verdict needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
import itertools
import json
import math
import re
from typing import Any

from controller.config.sections.kubernetes_profiles import PROFILE
from controller.config.sections.policies import POLICY
from controller.trial.blocks import Arm, Block, Pair

__all__ = ("TRIAL_KEY", "SummaryError", "Trial", "decode", "encode")

# Annotation of the Node.
TRIAL_KEY = "sweetpoint.dev/trial"
_VERSION = 2
_WITHOUT_POLICY = 1  # the version before, which has pairs only
MAX_CHARS = 32 << 10
MAX_PAIRS = 64
_MAX_SERVICES = 8
_MAX_NAME_CHARS = 128
_MAX_REPLACED = 64  # as in the configuration
_MAX_KEYS = 32
# Such as law.find_harm=false.
_SETTING = r"^[a-z_.]{1,63}=[ -~]{0,64}$"
_MOST_CPUS = 1e5
_LAST_S = 253402300800.0  # the year 10000


class SummaryError(Exception):
    """The text of an annotation is not a trial that counts.

    The message says why. It is one of few, and has nothing of the text.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The ``pairs`` of a trial, and what it compared.

    In one arm ``policy`` was in force, in the other one it was not; empty: the agent was paused
    there. The policy replaces profiles as ``replaces`` says, and sets other keys ``also``,
    each with its value.
    ``hurt_s`` is when the block began in which it hurt a service so much that the trial ended, in
    seconds since 1970.
    """

    pairs: Sequence[Pair] = ()
    policy: str = ""
    replaces: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    hurt_s: float | None = None


def encode(trial: Trial) -> str:
    """Return the summary of the last pairs, at most 64, with at most eight services each."""
    head = {
        "policy": trial.policy,
        "replaces": dict(trial.replaces),
        "also": trial.also,
        "hurt_s": None if trial.hurt_s is None else round(trial.hurt_s, 1),
    }
    rows = [_row(pair) for pair in trial.pairs[-MAX_PAIRS:]]
    while len(text := json.dumps([_VERSION, head, rows], separators=(",", ":"))) > MAX_CHARS:
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


def decode(text: str) -> Trial:
    """Return the trial of the summary *text*, whose pairs have services and best-effort work.

    :raises SummaryError: it is too long, not a summary, of another version, or has values that
        cannot be measured.
    """
    if len(text) > MAX_CHARS:
        raise SummaryError(f"longer than {MAX_CHARS} characters")
    try:
        version, *rest = json.loads(text)
        if version == _WITHOUT_POLICY:
            raise SummaryError("an older agent wrote it, which did not say what it compared")
        if version != _VERSION:
            raise SummaryError("a version that is not known")
        head, rows = rest
        trial = _trial(rows=rows, **head)
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        raise SummaryError("not a summary of a trial") from None
    began = [pair.enforce.began_s for pair in trial.pairs]
    if any(first >= second for first, second in itertools.pairwise(began)):
        raise SummaryError("pairs that are not in the order of time")  # or the same one twice
    return trial


def _trial(*, rows: Any, policy: Any, replaces: Any, also: Any, hurt_s: object) -> Trial:
    if not isinstance(rows, list) or len(rows) > MAX_PAIRS:
        raise SummaryError(f"not a list of at most {MAX_PAIRS} pairs")
    if len(replaces) > _MAX_REPLACED or len(also) > _MAX_KEYS:
        raise ValueError("too many")
    return Trial(
        pairs=[_pair(*row) for row in rows],
        policy=_matching(POLICY, policy) if policy != "" else "",
        replaces={_matching(PROFILE, one): _matching(PROFILE, to) for one, to in replaces.items()},
        also=tuple(_matching(_SETTING, each) for each in also),
        hurt_s=None if hurt_s is None else _number(hurt_s, _LAST_S),
    )


def _matching(pattern: str, text: str) -> str:
    if re.fullmatch(pattern, text) is None:
        raise ValueError("not a name")
    return text


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
