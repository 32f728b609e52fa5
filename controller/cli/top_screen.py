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
from rich.text import Text

from controller.cli.top_pages import Page, SourceError
from controller.cli.top_table import Column, Fitted
from controller.page.view import (
    ChannelRow,
    PartRow,
    ServiceRow,
    Tracker,
    View,
    WorkloadRow,
    bar,
    spark,
)
from controller.page.words import state_words

__all__ = ("draw", "run")

_SORTS = ("harm", "use", "name")
_KEYS_S = 0.1
# How long the end waits for the thread that reads pages.
_END_S = 1.0
_SERVICES = (
    Column("service", least=10),
    Column("indicator"),
    Column("value"),
    Column("sweet point"),
    Column("times"),
    Column("", leave=4),
    Column("trend", least=8, leave=2, newest=True),
    Column("origin", leave=3),
    Column("channel", leave=5),
    Column("status", leave=1),
)
_WORKLOADS = (
    Column("best-effort", least=12),
    Column("allowance"),
    Column("use"),
    Column("blame"),
    Column("hurts", least=8),
)
_PARTS = (
    Column("hurt", least=10),
    Column("channel", leave=1),
    Column("by", least=12),
    Column("part"),
)
_CHANNELS = (
    Column("channel"),
    Column("state"),
    Column("demand"),
    Column("for", least=8),
    Column("knobs", least=8),
)
_STATES = {"free": "green", "squeeze": "yellow", "safe": "red", "hold": "red", "paused": "cyan"}


def draw(view: View, *, detail: bool, height: int, hint: str) -> Group:
    """Return *view* for a terminal of *height* lines; *hint* is the last line."""
    rows = max(3, (height - 12) // 2)
    parts = [*map(_part, view.parts[: None if detail else 3])]
    decisions = view.decisions[: None if detail else 5]
    return Group(
        Text(view.head, "bold"),
        *(Text(f"! {note}", "yellow") for note in view.notes),
        Fitted(_SERVICES, map(_service, view.services[: None if detail else rows])),
        Fitted(_WORKLOADS, map(_workload, view.workloads[:rows])),
        *([Fitted(_PARTS, parts)] if parts else []),
        Fitted(_CHANNELS, map(_channel, view.channels)),
        *(Text(text, overflow="ellipsis", no_wrap=not detail) for text in decisions),
        Text(hint, "dim"),
    )


def _service(row: ServiceRow) -> tuple[Text, ...]:
    style = "red" if (row.ratio or 0.0) > 1 else "green" if row.status == "fresh" else "dim"
    return (
        Text(row.service),
        Text(row.indicator),
        Text(row.value, style),
        Text(row.sweet_point),
        Text("" if row.ratio is None else f"{row.ratio:.3g}", style),
        Text(bar(row.ratio, 16), style),
        Text(spark(row.trend, 60), style),
        Text(row.origin),
        Text(row.channel),
        Text(row.status),
    )


def _workload(row: WorkloadRow) -> tuple[Text, ...]:
    return (
        Text(row.name),
        Text(row.allowance),
        Text("-" if row.use_cpus is None else f"{row.use_cpus:.2f}cpu"),
        Text(f"{row.blame:.0%}" if row.harms else "", "red"),
        Text(row.harms),
    )


def _part(row: PartRow) -> tuple[Text, ...]:
    who = " ".join(filter(None, (row.kind, row.name)))
    return Text(row.service), Text(row.channel), Text(who), Text(f"{row.share:.0%}", "red")


def _channel(row: ChannelRow) -> tuple[Text, ...]:
    style = _STATES.get(row.state, "blue")
    return (
        Text(row.channel),
        Text(state_words(row.state), style),
        Text(f"{row.demand:.0%}"),
        Text(row.service),
        Text(row.knobs),
    )


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
