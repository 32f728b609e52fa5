# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is held on a node: from a running agent's /statusz, or from a journal without one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actuators.journal_view import view_journal
from controller.cli.knob_text import value_text
from controller.core.model import Knob, KnobValue
from controller.host.names import printable
from controller.host.pause_file import PauseError, read_pauses
from controller.host.state_dir import JOURNAL
from controller.page.view import Tracker, View, mapping, number, paused, records, text

__all__ = ("Held", "HeldKnobRow", "LimitedRow", "WorstRow", "of_journal", "of_page")

_MOST_TEXT = 4096
_KNOBS = {str(each): each for each in Knob}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedRow:
    """A best-effort workload that is limited: by how much, since when, for whom and why.

    ``cpus`` is its quota (``None``: no knob of it is one). Times are ns since 1970.
    """

    name: str
    path: str
    cpus: float | None
    knobs: tuple[str, ...]
    since_ns: int | None
    channel: str
    service: str
    indicator: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldKnobRow:
    """A held knob: its value in force, and the one that a restore puts back.

    ``changed_ns`` is when the value came into force, ``since_ns`` when the knob began to be held
    (``None``: not known).
    """

    knob: str
    target: str
    value: str
    original: str
    since_ns: int | None
    changed_ns: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstRow:
    """The indicator that is most above its sweet point; ``ratio`` is value / sweet point."""

    service: str
    indicator: str
    channel: str
    status: str
    value: str
    sweet_point: str
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What is held at ``time_ns``; in mode ``observe``, what enforcing would hold.

    ``source`` is ``agent`` or ``journal``. A journal has no reasons, so ``limited`` is empty and
    ``best_effort``, the number of best-effort workloads, is ``None``. ``notes`` are warnings;
    ``paused`` and ``problems`` are those about pauses and about what is not well. ``worst`` is
    ``None`` without a value, and in a journal.
    """

    source: str
    mode: str
    time_ns: int
    best_effort: int | None
    limited: tuple[LimitedRow, ...]
    knobs: tuple[HeldKnobRow, ...]
    notes: tuple[str, ...]
    paused: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    worst: WorstRow | None = None


def of_page(page: Mapping[str, Any], now_ns: int) -> Held:
    """Return what the agent of *page* (/statusz) holds; *now_ns*: since 1970, if it has no time."""
    record = mapping(page.get("in_force"))
    wall_ns, time_ns = number(page.get("wall_ns")), number(page.get("time_ns"))
    known = wall_ns is not None and time_ns is not None
    offset_ns = (wall_ns or 0.0) - (time_ns or 0.0) if known else None
    workloads = records(page.get("workloads"))
    view = Tracker().update(page)
    return Held(
        source="agent",
        mode=text(page.get("mode")),
        time_ns=now_ns if wall_ns is None else round(wall_ns),
        best_effort=sum(each.get("qos") == "best-effort" for each in workloads),
        limited=tuple(_limited(record, offset_ns)),
        knobs=tuple(_knobs(record, offset_ns)),
        notes=view.notes,
        paused=tuple(paused(page)),
        problems=view.problems,
        worst=_worst(view),
    )


def _worst(view: View) -> WorstRow | None:
    # Tracker has the worst one first.
    for row in view.services:
        if row.ratio is not None:
            return WorstRow(
                service=row.service,
                indicator=row.indicator,
                channel=row.channel,
                status=row.status,
                value=row.value,
                sweet_point=row.sweet_point,
                ratio=row.ratio,
            )
    return None


def of_journal(state_dir: Path, now_ns: int, problem: str) -> Held:
    """Return what the journal in *state_dir* holds; *problem*: why no agent was asked.

    :raises OSError: the journal cannot be read, or does not belong to root alone.
    """
    journal = view_journal(state_dir / JOURNAL)
    knobs = tuple(
        HeldKnobRow(
            knob=str(record.knob),
            target=printable(record.target.path),
            value=value_text(record.knob, record.intended),
            original=value_text(record.knob, record.original),
            since_ns=None,
            changed_ns=written_ns,
            reason="",
        )
        for record, written_ns in journal.records
    )
    unread = [f"{path} cannot be evaluated: its knob is not touched" for path in journal.unread]
    return Held(
        source="journal",
        mode="",
        time_ns=now_ns,
        best_effort=None,
        limited=(),
        knobs=knobs,
        notes=(problem, *unread, *_pauses(state_dir, now_ns)),
    )


def _pauses(state_dir: Path, now_ns: int) -> Iterator[str]:
    try:
        found = read_pauses(state_dir, now_ns / 1e9)
    except PauseError as error:
        yield str(error)
        return
    for scope, name, until_s in found:
        if until_s > now_ns / 1e9:
            yield f"an agent that starts finds a pause: {scope} {printable(name)}".rstrip()


def _limited(record: Mapping[str, Any], offset_ns: float | None) -> Iterator[LimitedRow]:
    for each in records(record.get("limited")):
        knobs = each.get("knobs")
        yield LimitedRow(
            name=text(each.get("name")),
            path=text(each.get("path"), _MOST_TEXT),
            cpus=number(each.get("cpus")),
            knobs=tuple(map(text, knobs)) if isinstance(knobs, list) else (),
            since_ns=_wall_ns(each.get("since_ns"), offset_ns),
            channel=text(each.get("channel")),
            service=text(each.get("service")),
            indicator=text(each.get("indicator")),
            reason=text(each.get("reason"), _MOST_TEXT),
        )


def _knobs(record: Mapping[str, Any], offset_ns: float | None) -> Iterator[HeldKnobRow]:
    for each in records(record.get("knobs")):
        name = text(each.get("knob"))
        yield HeldKnobRow(
            knob=name,
            target=text(each.get("path"), _MOST_TEXT),
            value=_value(name, each.get("value")),
            original=_value(name, each.get("original")),
            since_ns=_wall_ns(each.get("since_ns"), offset_ns),
            changed_ns=_wall_ns(each.get("changed_ns"), offset_ns),
            reason=text(each.get("reason"), _MOST_TEXT),
        )


def _value(knob: str, value: object) -> str:
    shown = text(value, _MOST_TEXT)
    return value_text(_KNOBS[knob], KnobValue(shown)) if knob in _KNOBS else shown


def _wall_ns(value: object, offset_ns: float | None) -> int | None:
    monotonic_ns = number(value)
    return None if monotonic_ns is None or offset_ns is None else round(monotonic_ns + offset_ns)
