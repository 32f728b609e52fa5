# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The view of ``sweetpoint top`` on a terminal, drawn by rich; keys change filter and order.

``q`` ends, ``s`` changes the order, ``/`` begins a filter that Enter ends, ``d`` shows the trends
and all decisions.
"""

from collections.abc import Iterator
import contextlib
from dataclasses import replace
import os
import queue
import select
import sys
import termios
import threading
import tty

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from controller.cli.top_pages import Page, SourceError
from controller.page.view import Tracker, View, bar, spark

__all__ = ("draw", "run")

_SORTS = ("harm", "use", "name")
_KEYS_S = 0.1
# How long the end waits for the thread that reads pages.
_END_S = 1.0
_STATES = {"free": "green", "squeeze": "yellow", "safe": "red", "hold": "red", "paused": "cyan"}


def draw(view: View, *, detail: bool, height: int, hint: str) -> Group:
    """Return *view* for a terminal of *height* lines; *hint* is the last line."""
    services = _table("service", "indicator", "value", "sweet point", "", "trend", "channel")
    rows = max(3, (height - 12) // 2)
    for row in view.services[: None if detail else rows]:
        style = "red" if (row.ratio or 0.0) > 1 else "green" if row.status == "fresh" else "dim"
        services.add_row(
            Text(row.service),
            Text(row.indicator),
            Text(row.value, style),
            Text(" ".join(filter(None, (row.sweet_point, row.origin)))),
            Text(bar(row.ratio, 16), style),
            Text(spark(row.trend, 60 if detail else 20), style),
            Text(f"{row.channel} {row.status}"),
        )
    workloads = _table("best-effort", "allowance", "use", "blame", "hurts")
    for work in view.workloads[:rows]:
        workloads.add_row(
            Text(work.name),
            Text(work.allowance),
            Text("-" if work.use_cpus is None else f"{work.use_cpus:.2f}cpu"),
            Text(f"{work.blame:.0%}" if work.harms else "", "red"),
            Text(work.harms),
        )
    channels = _table("channel", "state", "demand", "for", "knobs")
    for each in view.channels:
        style = _STATES.get(each.state, "blue")
        demand = f"{each.demand:.0%}"
        texts = (Text(each.state, style), Text(demand), Text(each.service), Text(each.knobs))
        channels.add_row(Text(each.channel), *texts)
    decisions = view.decisions[: None if detail else 5]
    return Group(
        Text(view.head, "bold"),
        *(Text(f"! {note}", "yellow") for note in view.notes),
        services,
        workloads,
        channels,
        *(Text(text, overflow="ellipsis", no_wrap=not detail) for text in decisions),
        Text(hint, "dim"),
    )


def _table(*columns: str) -> Table:
    table = Table(box=None, expand=True, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    return table


def run(
    pages: Iterator[Page | SourceError],
    stop: threading.Event,
    tracker: Tracker,
    *,
    detail: bool,
) -> None:
    """Draw *pages* until the key ``q``, which sets *stop*, or the end of the pages.

    :raises Exception: what *pages* raises.
    """
    console = Console()
    page = next(pages)
    assert not isinstance(page, SourceError)
    view = tracker.update(page)
    problem = ""
    arriving: queue.SimpleQueue[Page | SourceError | None] = queue.SimpleQueue()
    failures: list[Exception] = []
    reader = threading.Thread(target=_read, args=(pages, arriving, failures), daemon=True)
    reader.start()
    typed: str | None = None  # the filter that is being typed
    drawn: object = None
    with _cbreak(), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            order = f"s: order ({tracker.sort})  /: filter ({tracker.pattern})  d: detail  q: end"
            hint = order if typed is None else f"filter: {typed}"
            wanted = view, problem, detail, hint, console.size
            if wanted != drawn:  # because drawing costs some milliseconds
                drawn = wanted
                notes = (f"not live: {problem}", *view.notes) if problem else view.notes
                shown = replace(view, notes=notes)
                screen = draw(shown, detail=detail, height=console.height, hint=hint)
                live.update(screen, refresh=True)
            for key in _keys():
                if typed is not None:
                    typed = _type(typed, key, tracker)
                elif key == "q":
                    stop.set()
                    reader.join(_END_S)
                    return
                elif key == "s":
                    tracker.sort = _SORTS[(_SORTS.index(tracker.sort) + 1) % len(_SORTS)]
                elif key == "/":
                    typed = ""
                elif key == "d":
                    detail = not detail
                view = tracker.again(page)
            with contextlib.suppress(queue.Empty):
                arrived = arriving.get_nowait()
                if arrived is None:
                    for failure in failures:
                        raise failure
                    return
                if isinstance(arrived, SourceError):
                    problem = str(arrived)
                else:
                    page, problem = arrived, ""
                    view = tracker.update(page)


def _read(
    pages: Iterator[Page | SourceError],
    arriving: "queue.SimpleQueue[Page | SourceError | None]",
    failures: list[Exception],
) -> None:
    """Put *pages* into *arriving*, and ``None`` at their end."""
    try:
        for page in pages:
            arriving.put(page)
    except Exception as error:  # raised by the thread that draws
        failures.append(error)
    arriving.put(None)


def _type(typed: str, key: str, tracker: Tracker) -> str | None:
    """Return the filter after *key*; ``None`` when it ended."""
    if key in ("\r", "\n"):
        tracker.pattern = typed if any(each in typed for each in "*?[") else f"*{typed}*"
        return None
    if key == "\x1b":
        return None
    if key in ("\x7f", "\b"):
        return typed[:-1]
    return typed + key if key.isprintable() else typed


@contextlib.contextmanager
def _cbreak() -> Iterator[None]:
    """Read keys one by one and without echo; the terminal is as before afterwards."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _keys() -> str:
    """Return the keys that are pressed within a tenth of a second, ``q`` without a terminal."""
    if not sys.stdin.isatty():
        threading.Event().wait(_KEYS_S)
        return ""
    ready, _, _ = select.select([sys.stdin], [], [], _KEYS_S)
    if not ready:
        return ""
    try:
        # Not by sys.stdin, whose buffer select(2) does not see.
        keys = os.read(sys.stdin.fileno(), 1024)
    except OSError:
        keys = b""
    return keys.decode(errors="replace") or "q"
