# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Tables of Markdown."""

from collections.abc import Iterable, Iterator, Sequence

__all__ = ("code", "table")


def code(text: str) -> str:
    """Return *text* as code; empty stays empty."""
    return f"`{text}`" if text else ""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(headings)} |"
    yield "|" + "---|" * len(headings)
    for row in rows:
        cells = (" ".join(cell.split()).replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |"
    yield ""
