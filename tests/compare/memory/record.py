# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The file of a comparison where memory is short: its conditions, blocks and failures."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
import json
from pathlib import Path

from controller.demo.cgroups import DemoError
from tests.compare.record import Failure

__all__ = ("MemoryBlock", "MemoryRecord")

_SAME = ("kernel", "CPUs", "block", "node")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBlock:
    """The result of a block.

    ``p99_ms`` is as in ``record.Block``. ``unanswered`` counts requests without an answer, of
    ``requests``. ``refaults`` are pages of the service that were read again. ``work_mib_s`` is what
    the job completed. ``job_deaths`` are ends of its processes by the kernel, ``evictions`` those
    by the policy. ``load`` is the load average of a minute before the block: other work of the
    machine lengthens latencies.
    """

    mix: str
    policy: str
    round: int
    service_deaths: int
    p99_ms: tuple[float, ...]
    unanswered: int
    requests: int
    refaults: int
    work_mib_s: float
    job_deaths: int
    evictions: int
    load: float


@dataclass(slots=True, kw_only=True)
class MemoryRecord:
    """The contents of the file *path*; ``facts`` are names and values of the conditions."""

    path: Path
    facts: dict[str, str] = field(default_factory=dict)
    blocks: list[MemoryBlock] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> "MemoryRecord":
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

    def begin(self, facts: Mapping[str, str]) -> None:
        """Write *facts* to the file: it starts here, or goes on.

        :raises DemoError: it has blocks of another kernel, other CPUs, another length.
        """
        for name in _SAME:
            if (before := self.facts.get(name, facts.get(name))) != facts.get(name):
                raise DemoError(
                    f"{self.path} cannot be continued: its {name} is {before}, "
                    f"now it is {facts.get(name)}"
                )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.facts |= facts
        self._append({"facts": self.facts})

    def add(self, result: MemoryBlock | Failure) -> None:
        """Append *result* to the file."""
        if isinstance(result, MemoryBlock):
            self.blocks.append(result)
        else:
            self.failures.append(result)
        self._append(asdict(result))

    @property
    def done(self) -> set[tuple[str, str, int]]:
        """Return mix, policy and round of the blocks."""
        return {(each.mix, each.policy, each.round) for each in self.blocks}

    def _append(self, row: Mapping[str, object]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def _take(self, row: dict[str, object]) -> None:
        if "facts" in row:
            self.facts = dict(row["facts"])  # type: ignore[call-overload]
        elif "reason" in row:
            self.failures.append(Failure(**row))  # type: ignore[arg-type]
        else:
            self.blocks.append(MemoryBlock(**row | {"p99_ms": tuple(row["p99_ms"])}))  # type: ignore
