# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The file of a comparison: its conditions, blocks and failures as JSON lines."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
import json
from pathlib import Path
from typing import ClassVar, Generic, Self, TypeVar

from controller.demo.cgroups import DemoError
from tests.compare.policies import POLICIES

__all__ = ("ALONE", "WINDOW_S", "Block", "Failure", "Record", "RecordFile", "is_usable")

# The service beside idle-class work, which keeps the CPUs awake, instead of a job.
ALONE = "alone"
WINDOW_S = 0.5
# Blocks whose accounts differ more from the wall clock, or that the hypervisor disturbed more.
_MOST_UNACCOUNTED = 0.05
_MOST_STEAL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The result of a block.

    ``p99_ms`` has a value for each window of ``WINDOW_S``, by the intended time; requests without
    an answer count as endless. ``work`` is the job's own count per second. ``ls_cpus`` and
    ``be_cpus`` are CPU use. ``unaccounted_ratio`` is the share of the machine's time that is
    neither in the accounts of cgroups nor idle nor stolen; ``steal_ratio`` is the stolen share.

    ``writes`` counts writes of the job's quota, ``squeezes`` the times that it was seen to fall,
    ``lowest_quota_cpus`` is the lowest one seen; ``None``: no quota. ``agent_ticks`` are the
    agent's ticks by the state of its cpu channel.
    """

    mix: str
    policy: str
    round: int
    p50_ms: float
    p99_ms: tuple[float, ...]
    failed: int
    requests: int
    work: float
    unit: str
    ls_cpus: float
    be_cpus: float
    writes: int
    squeezes: int
    lowest_quota_cpus: float | None
    agent_ticks: Mapping[str, int]
    unaccounted_ratio: float
    steal_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A block without a result, and why."""

    mix: str
    policy: str
    round: int
    reason: str


def is_usable(block: Block) -> bool:
    """Return whether *block* has windows and its accounts can be believed."""
    return (
        bool(block.p99_ms)
        and abs(block.unaccounted_ratio) <= _MOST_UNACCOUNTED
        and block.steal_ratio <= _MOST_STEAL
    )


B = TypeVar("B")


@dataclass(slots=True, kw_only=True)
class RecordFile(Generic[B]):
    """The contents of the file *path*; ``facts`` are names and values of the conditions.

    ``kind`` is the class of ``blocks``, a dataclass with ``p99_ms``.
    """

    kind: ClassVar[type]
    path: Path
    facts: dict[str, str] = field(default_factory=dict)
    blocks: list[B] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file *path*.

        :raises DemoError: it cannot be read, or was written by another version.
        """
        found = cls(path=path)
        try:
            for line in path.read_text().splitlines():
                found._take(json.loads(line))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DemoError(f"cannot read blocks from {path}: {error}") from error
        return found

    def check_same(self, facts: Mapping[str, str], same: Iterable[str]) -> None:
        """Check that the file can be continued under *facts*.

        :raises DemoError: one that is named by *same* is another one than in the file.
        """
        for name in same:
            if self.facts.get(name) != facts.get(name):
                raise DemoError(
                    f"{self.path} cannot be continued: its {name} is {self.facts.get(name)}, "
                    f"now it is {facts.get(name)}"
                )

    def add(self, result: B | Failure) -> None:
        """Append *result* to the file."""
        if isinstance(result, Failure):
            self.failures.append(result)
        else:
            self.blocks.append(result)
        self.append(asdict(result))  # type: ignore[arg-type]

    def append(self, row: Mapping[str, object]) -> None:
        """Append a *row* to the file."""
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def _take(self, row: dict[str, object]) -> None:
        if "facts" in row:
            self.facts = dict(row["facts"])  # type: ignore[call-overload]
        elif "reason" in row:
            self.failures.append(Failure(**row))  # type: ignore[arg-type]
        else:
            self.blocks.append(self.kind(**row | {"p99_ms": tuple(row["p99_ms"])}))  # type: ignore


@dataclass(slots=True, kw_only=True)
class Record(RecordFile[Block]):
    """The file of the comparison where CPUs or a link are shared."""

    kind = Block

    @classmethod
    def start(cls, path: Path, facts: Mapping[str, str]) -> "Record":
        """Start the file *path*; an older one is kept beside it, with the suffix ``.old``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.replace(path.with_name(f"{path.name}.old"))
        found = cls(path=path, facts=dict(facts))
        found.append({"facts": found.facts})
        return found

    def resume(self, facts: Mapping[str, str], same: Iterable[str]) -> None:
        """Go on with the file under *facts*; of those that differ it gets both values.

        :raises DemoError: a fact that is named by *same* differs.
        """
        self.check_same(facts, same)
        for name, value in facts.items():
            before = self.facts.get(name)
            self.facts[name] = value if before in (None, value) else f"{before}, then {value}"
        self.append({"facts": self.facts})

    @property
    def usable(self) -> list[Block]:
        """Return the usable blocks, by policy in the order of ``POLICIES`` and then as they ran."""
        order = {policy: number for number, policy in enumerate((ALONE, *POLICIES))}
        found = [block for block in self.blocks if is_usable(block)]
        return sorted(found, key=lambda block: order.get(block.policy, len(order)))

    @property
    def done(self) -> set[tuple[str, str, int]]:
        """Return mix, policy and round of the usable blocks."""
        return {(each.mix, each.policy, each.round) for each in self.usable}
