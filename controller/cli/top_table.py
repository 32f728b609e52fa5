# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Tables of ``sweetpoint top`` that follow the width of the terminal.

Names are cut and columns left out, in an order that each table says. Numbers are whole.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

__all__ = ("Column", "Fitted")

_GAP = 1


class Column(NamedTuple):
    """A column that may be cut to ``least`` characters, from the left if ``newest``; 0: not at all.

    ``leave``: the place in the order in which columns are left out; 0: it stays.
    """

    title: str
    least: int = 0
    leave: int = 0
    newest: bool = False


class Fitted:
    """A table of *rows* that is as wide as the terminal at most."""

    def __init__(self, columns: Sequence[Column], rows: Iterable[Sequence[Text]]) -> None:
        self._columns = columns
        self._rows = [*rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths(options.max_width)
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
        for at in widths:
            table.add_column(self._columns[at].title, no_wrap=True, overflow="ellipsis")
        for row in self._rows:
            table.add_row(*(self._cut(row[at], at, width) for at, width in widths.items()))
        yield table

    def _widths(self, width: int) -> dict[int, int]:
        """Return the width of each column that is shown, by its place."""
        natural = {
            at: max((row[at].cell_len for row in self._rows), default=0)
            for at in range(len(self._columns))
        }
        least = {
            at: max(min(natural[at], each.least or natural[at]), len(each.title))
            for at, each in enumerate(self._columns)
        }
        for at in sorted(natural, key=self._leaves):
            if self._columns[at].leave and _total(least) > width:
                del least[at]
        spare = width - _total(least)
        # Columns that stay are the first to get the width that they want.
        stay = [at for at in least if not self._columns[at].leave]
        for at in (*stay, *sorted({*least} - {*stay}, key=self._leaves, reverse=True)):
            more = min(max(0, spare), max(0, natural[at] - least[at]))
            least[at] += more
            spare -= more
        return least

    def _leaves(self, at: int) -> int:
        return self._columns[at].leave

    def _cut(self, text: Text, at: int, width: int) -> Text:
        if text.cell_len <= width:
            return text
        if self._columns[at].newest:
            return text[-width:]
        shown = text.copy()
        shown.truncate(width, overflow="ellipsis")
        return shown


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)
