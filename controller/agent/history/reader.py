# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Reading of the history: what is damaged or of a newer version is left out and counted."""

from collections.abc import Iterator
from pathlib import Path

from controller.agent.history.files import DIRECTORY
from controller.agent.history.records import Line, decode
from controller.host.ring import RingReader

__all__ = ("HistoryReader",)


class HistoryReader:
    """Reads one *stream* of the history in *data_dir*, or in the directory ``history`` itself.

    ``problems`` are the first things that could not be read, in words; ``unreadable`` counts all.
    """

    def __init__(self, data_dir: Path, stream: str) -> None:
        inside = data_dir / DIRECTORY
        self._ring = RingReader(inside if inside.is_dir() else data_dir, stream)
        self._bad_lines = 0
        self.problems: list[str] = []

    @property
    def unreadable(self) -> int:
        """The number of blocks and lines that could not be read so far."""
        return self._ring.damaged + self._bad_lines

    def lines(self, since_s: float = 0.0) -> Iterator[Line | str]:
        """Yield the records, the oldest first; for what is not readable, a text that says why.

        :param since_s: files that were last written before this time (since 1970) are left out.

        :raises OSError: there is no history, or it does not belong to root alone.
        """
        damaged = 0
        for line in decode(self._ring.lines(since_s)):
            if isinstance(line, str):
                self._bad_lines += 1
                self._note(line)
            elif self._ring.damaged > damaged:
                damaged = self._ring.damaged
                self._note(self._ring.problem)
                yield self._ring.problem
            yield line
        if self._ring.damaged > damaged:
            self._note(self._ring.problem)

    def _note(self, problem: str) -> None:
        if len(self.problems) < 10:
            self.problems.append(problem)
