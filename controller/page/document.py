# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A page as data, and its HTML: one document without external resources, light and dark.

What a page says never depends on colour alone: lines have dashes, cells have numbers, and charts
have their range in words. All text is escaped here and nowhere else.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from controller.page.chart import Chart
from controller.page.quantities import position, spaced, times
from controller.page.style import SCRIPT, SCRIPT_HASH, STYLE, STYLE_HASH

__all__ = (
    "Badge",
    "Bar",
    "Card",
    "Cards",
    "Cell",
    "Document",
    "Facts",
    "Fold",
    "Part",
    "Section",
    "Share",
    "Table",
    "Text",
    "policy",
    "render",
)

_SHADES = 8


@dataclass(frozen=True, slots=True)
class Bar:
    """A cell with a value relative to its sweet point, as a number and a bar; ``None``: unknown."""

    ratio: float | None


@dataclass(frozen=True, slots=True)
class Share:
    """A cell with a part, 0 to 1, as a number on a shade; ``None``: none."""

    part: float | None


Cell = str | Bar | Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table; the first cell of a row is its heading. ``left``: how many columns are text."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    left: int = 1


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; ``kind`` is a CSS class: empty, ``soft``, ``good`` or ``bad``."""

    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Badge:
    """A word that stands out; ``kind`` is a CSS class: ``on`` or ``off``."""

    word: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One result: a large figure under its title, what it means in a line, details below in small.

    ``kind`` is a CSS class: ``good``, ``bad``, or ``unsure``, which is grey.
    """

    title: str
    figure: str
    says: str
    details: Sequence[str] = ()
    kind: str = "unsure"


@dataclass(frozen=True, slots=True)
class Cards:
    """Cards side by side."""

    cards: Sequence[Card]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Parts that are shown when a reader opens them; of a page that is not live: it would close."""

    title: str
    parts: Sequence["Part"]


Part = Table | Facts | Text | Chart | Cards | Fold | tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and what stands below it; a tuple of texts is a list."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A page. ``notes`` are warnings. A ``live`` one renews itself while it is looked at.

    ``summary`` is a sentence that says it all, behind its ``badge``. The sections may be made while
    the page is rendered, so that a reader can pause between them.
    """

    title: str
    lead: str = ""
    badge: Badge | None = None
    summary: str = ""
    notes: Sequence[str] = ()
    sections: Iterable[Section] = ()
    live: bool = False


def policy(*, live: bool) -> str:
    """Return the Content-Security-Policy of a page: nothing but its own style and script."""
    script = f"'{SCRIPT_HASH}'; connect-src 'self'" if live else "'none'"
    return (
        f"default-src 'none'; style-src '{STYLE_HASH}'; script-src {script}; base-uri 'none'; "
        "form-action 'none'"
    )


def render(document: Document) -> Iterator[str]:
    """Yield the HTML of *document* in pieces."""
    title = escape(document.title)
    yield (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(live=document.live)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>\n"
        '<a class="skip" href="#main">Skip to the content</a>\n'
        f"<header><h1>{title}</h1>"
    )
    if document.lead:
        yield f'<p class="soft">{escape(document.lead)}</p>'
    if document.live:
        yield (
            '<p class="live" id="live" hidden><button type="button" id="updates" '
            'aria-pressed="false">Stop updates</button> <span role="status" id="state"></span></p>'
            '<noscript><p class="soft">Reload the page to renew it.</p></noscript>'
        )
    yield '</header>\n<main id="main">\n'
    if document.summary:
        badge = document.badge
        word = f'<b class="badge {escape(badge.kind)}">{escape(badge.word)}</b> ' if badge else ""
        yield f'<p class="summary">{word}{escape(document.summary)}</p>\n'
    if document.notes:
        notes = "".join(f"<li>{escape(note)}</li>" for note in document.notes)
        yield f'<ul class="notes" aria-label="Warnings">{notes}</ul>\n'
    for number, section in enumerate(document.sections):
        heading = f'<h2 id="s{number}">{escape(section.title)}</h2>'
        yield f'<section aria-labelledby="s{number}">{heading}\n'
        for index, part in enumerate(section.parts):
            yield _part(part, f"s{number}p{index}")
        yield "</section>\n"
    script = f"<script>{SCRIPT}</script>" if document.live else ""
    yield f"</main>{script}</body></html>\n"


def _part(part: Part, identity: str) -> str:
    if isinstance(part, Text):
        kind = f' class="{escape(part.kind)}"' if part.kind else ""
        return f"<p{kind}>{escape(part.text)}</p>\n"
    if isinstance(part, Facts):
        items = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in part.items)
        return f"<dl>{''.join(items)}</dl>\n"
    if isinstance(part, Chart):
        return (
            f'<figure><figcaption id="{identity}c">{escape(part.title)}</figcaption>'
            f"{_region(part.svg(), identity)}{part.legend()}</figure>\n"
        )
    if isinstance(part, Cards):
        return f'<div class="cards">{"".join(map(_card, part.cards))}</div>\n'
    if isinstance(part, Fold):
        inner = "".join(_part(each, f"{identity}f{n}") for n, each in enumerate(part.parts))
        title = escape(part.title)
        return f"<details><summary>{title}</summary>\n{inner}</details>\n"
    if isinstance(part, tuple):
        return f"<ol>{''.join(f'<li>{escape(each)}</li>' for each in part)}</ol>\n"
    return _table(part, identity)


def _card(card: Card) -> str:
    details = "".join(f"<li>{escape(each)}</li>" for each in card.details)
    return (
        f'<article class="card {escape(card.kind)}"><h3>{escape(card.title)}</h3>'
        f'<p class="figure">{escape(card.figure)}</p><p class="says">{escape(card.says)}</p>'
        f"<ul>{details}</ul></article>"
    )


def _region(inner: str, identity: str) -> str:
    """Return *inner* so that it can be scrolled, also by keys, where the window is narrow."""
    return (
        f'<div class="scroll" id="{identity}" tabindex="0" role="region" '
        f'aria-labelledby="{identity}c">{inner}</div>'
    )


def _table(table: Table, identity: str) -> str:
    def kind(column: int) -> str:
        return ' class="text"' if column < table.left else ""

    head = "".join(
        f'<th scope="col"{kind(column)}>{escape(heading)}</th>'
        for column, heading in enumerate(table.headings)
    )
    rows = []
    for row in table.rows:
        cells = [f'<th scope="row" class="text">{_cell(row[0])}</th>']
        for column, cell in enumerate(row[1:], 1):
            shade = f' class="shade{_shade(cell)}"' if isinstance(cell, Share) else kind(column)
            cells.append(f"<td{shade}>{_cell(cell)}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    # The caption stands outside of what scrolls, so that it is as wide as the window.
    region = _region(
        f'<table aria-labelledby="{identity}c"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>",
        identity,
    )
    return (
        f'<figure class="table"><figcaption id="{identity}c">{escape(table.caption)}</figcaption>'
        f"{region}</figure>\n"
    )


def _shade(cell: Share) -> int:
    return 0 if cell.part is None else round(min(max(cell.part, 0.0), 1.0) * _SHADES)


def _cell(cell: Cell) -> str:
    if isinstance(cell, Share):
        return "" if cell.part is None else spaced(f"{cell.part:.0%}")
    if isinstance(cell, Bar):
        return _bar(cell.ratio)
    return escape(cell)


def _bar(ratio: float | None) -> str:
    if ratio is None:
        return ""
    width = 100 * position(ratio)
    within = min(width, 50.0)
    beyond = f'<path class="beyond" d="M50 2h{width - 50:.1f}v8h-{width - 50:.1f}z"/>'
    return (
        f'<span class="ratio">{times(ratio)}</span>'
        '<svg class="bar" viewBox="0 0 100 12" aria-hidden="true">'
        f'<path class="within" d="M0 2h{within:.1f}v8h-{within:.1f}z"/>'
        f'{beyond if width > 50 else ""}<path class="point" d="M50 0v12"/></svg>'
    )
