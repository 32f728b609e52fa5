# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The file of a comparison where memory is short: its conditions, blocks and failures."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.compare.record import RecordFile

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
class MemoryRecord(RecordFile[MemoryBlock]):
    """The file of the comparison where memory is short."""

    kind = MemoryBlock

    def begin(self, facts: Mapping[str, str]) -> None:
        """Write *facts* to the file: it starts here, or goes on.

        :raises DemoError: it has blocks of another kernel, other CPUs, another length.
        """
        self.check_same(facts, [name for name in _SAME if name in self.facts])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.facts |= facts
        self.append({"facts": self.facts})

    @property
    def done(self) -> set[tuple[str, str, int]]:
        """Return mix, policy and round of the blocks."""
        return {(each.mix, each.policy, each.round) for each in self.blocks}
