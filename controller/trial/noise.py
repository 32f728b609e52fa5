# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How much blocks differ without a trial, from the history: what a trial can show is known before.

The difference of two blocks that follow each other varies as that of a pair does, because the agent
did the same in both.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from controller.agent.history.incidents import Coverage
from controller.agent.history.reader import HistoryReader
from controller.agent.history.records import MOMENTS, Moment, Start
from controller.agent.history.story import Story
from controller.core.model import Mode
from controller.core.units import NS_PER_SEC

__all__ = ("block_differences",)

# Of a block that is less complete nothing is known.
_COMPLETE = 0.9


def block_differences(
    data_dir: Path, since_ns: int, until_ns: int, block_s: float
) -> Mapping[str, list[float]]:
    """Return, by service, the differences of the time above a sweet point in successive blocks.

    Each is a part of the block, of *block_s* seconds, while an agent enforced. Times since 1970.

    :raises OSError: there is no history, or it does not belong to root alone.
    """
    blocks = _Blocks(Coverage(since_ns, until_ns), block_s)
    blocks.read(HistoryReader(data_dir, MOMENTS).lines())
    return blocks.differences()


class _Blocks(Story):
    """Adds up the time above a sweet point in blocks of equal length."""

    def __init__(self, coverage: Coverage, block_s: float) -> None:
        super().__init__(coverage)
        self._block_ns = round(block_s * NS_PER_SEC)
        self._enforced_ns: dict[int, float] = defaultdict(float)
        self._suffered_ns: dict[tuple[str, str], dict[int, float]] = {}

    def begin(self, wall_ns: int, start: Start) -> None:
        """A start of the agent is part of its block."""

    def take(self, wall_ns: int, moment: Moment) -> None:
        """Add the time since the moment before."""
        if wall_ns < self.coverage.since_ns or moment.mode is not Mode.ENFORCE:
            return
        elapsed_ns = self.elapsed_ns(wall_ns)
        suffered = [*self.suffered(moment, elapsed_ns)]
        for number, share in self._shares(wall_ns - self.coverage.since_ns, elapsed_ns):
            self._enforced_ns[number] += share * elapsed_ns
            for each in suffered:
                key = each.service, each.channel
                blocks = self._suffered_ns.setdefault(key, defaultdict(float))
                blocks[number] += share * each.time_ns

    def _shares(self, end_ns: int, elapsed_ns: int) -> Iterator[tuple[int, float]]:
        """Yield the blocks that the *elapsed_ns* before *end_ns* are in, with their shares."""
        begin_ns = end_ns - elapsed_ns
        while begin_ns < end_ns:
            number = begin_ns // self._block_ns
            next_ns = min(end_ns, (number + 1) * self._block_ns)
            yield number, (next_ns - begin_ns) / elapsed_ns
            begin_ns = next_ns

    def close(self, wall_ns: int | None, reason: str) -> None:
        """Nothing lasts over a restart."""

    def differences(self) -> dict[str, list[float]]:
        """Return the differences of whole blocks that follow each other, by service."""
        least_ns = _COMPLETE * self._block_ns
        whole = {number for number, time_ns in self._enforced_ns.items() if time_ns >= least_ns}
        firsts = [number for number in sorted(whole) if number % 2 == 0 and number + 1 in whole]
        found: dict[str, list[float]] = {}
        for (service, _), blocks in self._suffered_ns.items():
            each = [(blocks[n] - blocks[n + 1]) / self._block_ns for n in firsts]
            if sum(map(abs, each)) >= sum(map(abs, found.get(service, []))):
                found[service] = each
        return found
