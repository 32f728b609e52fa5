# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The blocks of a trial: their order, what was measured in each, and their file.

The file has JSON lines: a head, then a line for each pair of blocks. So a trial that was killed
keeps all pairs that it finished, and the files of several nodes can be analysed together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
import json
import math
from pathlib import Path
import random
from typing import Any, NamedTuple

from controller.config.sections.trial import design_problems
from controller.core.units import count

__all__ = (
    "Arm",
    "Block",
    "Change",
    "Design",
    "Pair",
    "Results",
    "TrialError",
    "Work",
    "append",
    "begin_anew",
    "changes_of",
    "load",
    "start",
)

_VERSION = 1
_ANEW, _CHANGES = "anew", "changes"  # keys of a line
_MOST_CHANGES = 128
_MOST_TEXT = 64
# A day of the shortest pairs has less.
_MOST_BYTES = 64 << 20
_MOST_NAME = 64  # of a policy, and of a digest
_LAST_S = 253402300800  # the year 10000, which has no calendar in Python


class TrialError(Exception):
    """A trial cannot begin, or a file is not that of a trial; the message says what to do."""


class Arm(StrEnum):
    """What the agent does in a block; with a policy, ``PAUSE`` pauses nothing but the policy."""

    ENFORCE = "enforce"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Lengths in seconds. The first ``washout_s`` of each block are not measured.

    With a ``policy`` the agent enforces in both arms, in ``Arm.PAUSE`` without this policy. It is
    one of the configuration, or the candidate of a file with the digest ``candidate``.
    """

    pairs: int
    enforce_s: float
    pause_s: float
    washout_s: float
    seed: int
    policy: str = ""
    candidate: str = ""

    @classmethod
    def of(
        cls, total_s: float, pause_s: float, washout_s: float, paused_share: float, seed: int
    ) -> "Design":
        """Return the design with as many pairs as *total_s* has room for.

        *paused_share* is the paused part of the time, above 0 and at most 0.5.

        :raises TrialError: fewer than three pairs, a share out of range, or a block that is not
            twice as long as *washout_s*.
        """
        for option, text in design_problems(total_s, pause_s, washout_s, paused_share):
            raise TrialError(f"--{option} {text}")
        pair_s = pause_s / paused_share
        return cls(
            pairs=int(total_s / pair_s),
            enforce_s=pair_s - pause_s,
            pause_s=pause_s,
            washout_s=washout_s,
            seed=seed,
        )

    @property
    def names(self) -> Mapping[Arm, str]:
        """What a reader calls the arms."""
        if self.policy:
            return {Arm.ENFORCE: f"with {self.policy}", Arm.PAUSE: f"without {self.policy}"}
        return {Arm.ENFORCE: "enforcing", Arm.PAUSE: "paused"}

    def length_s(self, arm: Arm) -> float:
        """Return the length of a block of *arm*, with its first seconds."""
        return self.enforce_s if arm is Arm.ENFORCE else self.pause_s

    @property
    def total_s(self) -> float:
        """The length of all blocks."""
        return self.pairs * (self.enforce_s + self.pause_s)

    def order(self) -> list[tuple[Arm, Arm]]:
        """Return the arms of each pair: either order is equally likely, and ``seed`` decides."""
        numbers = random.Random(self.seed)  # noqa: S311 - to be repeated
        orders = ((Arm.ENFORCE, Arm.PAUSE), (Arm.PAUSE, Arm.ENFORCE))
        return [numbers.choice(orders) for _ in range(self.pairs)]


class Work(StrEnum):
    """What best-effort work did, with its unit, by the names of results."""

    INSTRUCTIONS = "best-effort instructions (1e9/s)"
    NETWORK = "best-effort network (MB/s)"
    DISKS = "best-effort disks (MB/s)"
    PODS = "best-effort pods completed (per hour)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What was measured in a block, without its first seconds.

    ``suffered_ratio`` is, by service, the part of the time above a sweet point, on the channel with
    the most. ``values`` are the means of indicators by ``service indicator``, in their units;
    those of times have ``(ms)`` after their name.
    ``best_effort_cpus`` is the CPU time of best-effort work per second, ``agent_cpus`` that of the
    agent, ``stolen_ratio`` the part of all CPUs that the hypervisor took. ``work`` is what else
    best-effort work did, by :class:`Work`, in its unit; what is not measured is missing.
    ``service_cpus`` is the CPU time of services per second, a measure of their load; ``None``: a
    trial of an earlier version.
    """

    arm: Arm
    began_s: float
    measured_s: float
    suffered_ratio: Mapping[str, float]
    values: Mapping[str, float]
    best_effort_cpus: float
    agent_cpus: float
    stolen_ratio: float
    work: Mapping[str, float] = field(default_factory=dict)
    service_cpus: float | None = None


class Pair(NamedTuple):
    """The two blocks of a pair, in whichever order they ran."""

    enforce: Block
    pause: Block


class Change(NamedTuple):
    """A ``key`` that a policy changes, such as ``law.find_harm``, with both values as text."""

    key: str
    value: str
    without: str


class Results(NamedTuple):
    """The design of a trial on ``node``, and its pairs so far.

    ``left_out`` is the number of pairs before these, with another configuration of the agent.
    ``changes``: what the policy changed in the last pair.
    """

    node: str
    design: Design
    pairs: Sequence[Pair]
    left_out: int = 0
    changes: tuple[Change, ...] = ()

    @property
    def note(self) -> str:
        """What is to be said of pairs that are left out; empty: there are none."""
        if not self.left_out:
            return ""
        return f"{count(self.left_out, 'pair')} left out: then the configuration changed"


def changes_of(results: Sequence[Results]) -> list[Change]:
    """Return what the policy changed on the nodes of *results*, each change once."""
    return list(dict.fromkeys(change for each in results for change in each.changes))


def start(path: Path, node: str, design: Design) -> None:
    """Begin the file *path*, which must not exist.

    :raises OSError: it exists, or cannot be written.
    """
    with path.open("x", encoding="utf-8") as file:
        fields = asdict(design)
        if not design.candidate:  # an earlier version knows none
            del fields["candidate"]
        head = {"version": _VERSION, "node": node, "design": fields}
        file.write(json.dumps(head) + "\n")


def append(path: Path, pair: Pair, *, anew: bool = False, changes: Sequence[Change] = ()) -> None:
    """Add *pair* to the file. *anew*: it is the first one with another configuration.

    :param changes: what the policy changed in it.
    :raises OSError: it cannot be written.
    """
    line: dict[str, object] = {arm: _fields(getattr(pair, arm)) for arm in Arm}
    if anew:
        line[_ANEW] = True
    if changes:
        line[_CHANGES] = changes
    _add(path, line)


def _fields(block: Block) -> dict[str, object]:
    fields = asdict(block)
    # An earlier version knows neither of them.
    for name, nothing in (("work", {}), ("service_cpus", None)):
        if fields[name] == nothing:
            del fields[name]
    return fields


def begin_anew(path: Path) -> None:
    """Note that no pair before counts, though none was finished since.

    :raises OSError: it cannot be written.
    """
    _add(path, {_ANEW: True})


def _add(path: Path, line: Mapping[str, object]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def load(path: Path) -> Results:
    """Return what the file *path* has of the last configuration.

    A last line that was cut off is left out.

    :raises TrialError: it is not a file of a trial, or of a newer version.
    :raises OSError: it cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise TrialError(f"{path}: larger than {_MOST_BYTES >> 20} MiB")
    head, *lines = data.split(b"\n")
    try:
        fields = json.loads(head)
        version = fields["version"]
        if version != _VERSION:
            raise TrialError(f"{path}: version {ascii(version)[:40]} is not known")
        design = _design(fields["design"])
        rows = [json.loads(line) for line in lines[:-1]]
        first = max((place for place, row in enumerate(rows) if _ANEW in row), default=0)
        # A line without a pair only says that the pairs begin anew.
        pairs = [None if [*row] == [_ANEW] else _pair(row) for row in rows]
        earlier, counted = ([*filter(None, each)] for each in (pairs[:first], pairs[first:]))
        changes = _changes(rows[-1]) if counted else ()
        return Results(str(fields["node"]), design, counted, len(earlier), changes)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise TrialError(f"{path}: not the file of a trial, or damaged") from None


def _design(fields: dict[str, Any]) -> Design:
    design = Design(**fields)
    for each in (design.policy, design.candidate):
        if not isinstance(each, str) or len(each) > _MOST_NAME:
            raise TypeError("not a policy")
    names = ("policy", "candidate")
    _check_numbers([each for key, each in asdict(design).items() if key not in names])
    return design


def _changes(fields: dict[str, Any]) -> tuple[Change, ...]:
    found = tuple(Change(*each) for each in fields.get(_CHANGES, ())[:_MOST_CHANGES])
    if not all(isinstance(each, str) and len(each) <= _MOST_TEXT for row in found for each in row):
        raise TypeError("not changes")
    return found


def _pair(fields: dict[str, Any]) -> Pair:
    return Pair(*(_block(fields[arm]) for arm in Arm))


def _block(fields: dict[str, Any]) -> Block:
    block = Block(**{**fields, "arm": Arm(fields["arm"])})
    numbers = [
        *(block.began_s, block.measured_s, block.best_effort_cpus),
        *(block.agent_cpus, block.stolen_ratio),
        *block.suffered_ratio.values(),
        *block.values.values(),
        *block.work.values(),
        block.service_cpus or 0.0,
    ]
    _check_numbers(numbers)
    if not 0 <= block.began_s < _LAST_S:
        raise ValueError("not a time")
    return block


def _check_numbers(numbers: Sequence[object]) -> None:
    for each in numbers:
        if not isinstance(each, int | float) or isinstance(each, bool) or not math.isfinite(each):
            raise TypeError("not a number")
