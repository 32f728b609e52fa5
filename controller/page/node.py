# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The page of a live agent: the view that ``sweetpoint top`` has too, and the last hours."""

from collections.abc import Iterator, Mapping
from datetime import tzinfo
from typing import Any

from controller.core.decision import ChannelState
from controller.page.decisions import decision_table
from controller.page.document import Bar, Cell, Document, Facts, Part, Section, Share, Table, Text
from controller.page.hours import Hours, sections
from controller.page.quantities import lasting, spaced
from controller.page.summary import badge, first_sentence, health, knobs_sentence
from controller.page.view import ServiceRow, View, mapping, number, records, text
from controller.page.words import state_words

__all__ = ("node_document",)

# Rows of a table; the worst come first.
_MOST = 40
_DECISIONS = 20
_OTHER = {
    ChannelState.FREE: "too short",
    ChannelState.SELF: "its own limit",
    ChannelState.STEAL: "CPU time of the hypervisor",
    ChannelState.NOT_BE: "other cause",
    ChannelState.HOLD: "no data",
    ChannelState.SAFE: "no data",
    ChannelState.PAUSED: "paused",
    "other": "another service decided",
}
# As the gain of ``sweetpoint advise``, which counts that time.
_MAY_HELP = (
    " Enforcing can help in the time by best-effort; in the rest only while best-effort work is "
    "limited for another service or on another channel, or yields by sched-idle."
)


def node_document(
    view: View, status: Mapping[str, Any], hours: Hours | None, zone: tzinfo, host: str, cpus: int
) -> Document:
    """Return the page of the agent on *host*.

    :param view: made of *status*, the data of /statusz.
    :param hours: its times count from 1970; ``None``: no history is kept.
    :param cpus: how many CPUs of the host are online.
    """
    if status.get("ready") is not True:
        note = "The agent has not finished a tick yet."
        return Document(title=f"sweetpoint on {host}", notes=(note,), live=True)
    return Document(
        title=f"sweetpoint on {host}",
        badge=badge(status),
        summary=first_sentence(status, cpus),
        notes=view.notes,
        sections=_sections(view, status, hours, zone, cpus),
        live=True,
    )


def _sections(
    view: View, status: Mapping[str, Any], hours: Hours | None, zone: tzinfo, cpus: int
) -> Iterator[Section]:
    yield Section(title="Services and their sweet points", parts=_services(view))
    yield Section(title=_title(status), parts=_suffering(status))
    if hours is None:
        off = "No history is kept (history.enabled), so there are no time lines."
        yield Section(title="Over time", parts=(Text(off, "soft"),))
    else:
        yield from sections(hours, zone)
    if view.parts:
        yield Section(title="What hurts services now", parts=_parts(view))
    yield Section(title="Best-effort workloads", parts=_workloads(view))
    in_force = Text(knobs_sentence(status, cpus))
    yield Section(title="Channels and knobs", parts=(in_force, *_channels(view)))
    yield Section(title="Decisions", parts=_decisions(status))
    yield Section(title="The agent itself", parts=(Facts(health(status)),))


def _services(view: View) -> list[Part]:
    rows: list[list[Cell]] = [
        [
            row.service,
            row.indicator,
            row.channel,
            row.status,
            _verdict(row.ratio, row.status),
            spaced(row.value),
            _sweet_point(row),
            Bar(row.ratio),
        ]
        for row in view.services[:_MOST]
    ]
    if not rows:
        return [Text("There is no latency-sensitive service with an indicator.", "soft")]
    return [
        Table(
            caption="Worst first. The middle of a bar is the sweet point, its end ten times that.",
            headings=(
                *("service", "indicator", "channel", "data", "state"),
                *("value", "sweet point", "times sweet point"),
            ),
            rows=rows,
            left=5,
        ),
        *_more(len(view.services)),
    ]


def _verdict(ratio: float | None, status: str) -> str:
    if status != "fresh" or ratio is None:
        return "- not measured"
    return "▲\N{NO-BREAK SPACE}above" if ratio > 1 else "✓\N{NO-BREAK SPACE}within"


def _sweet_point(row: ServiceRow) -> str:
    origin = f" ({row.origin})" if row.origin else ""
    return spaced(f"{row.sweet_point}{origin}")


def _workloads(view: View) -> list[Part]:
    rows: list[list[Cell]] = [
        [
            row.name,
            spaced(row.allowance),
            row.harms or "none",
            "-" if row.use_cpus is None else spaced(f"{row.use_cpus:.2f}cpu"),
            Share(row.blame if row.harms else None),
        ]
        for row in view.workloads[:_MOST]
    ]
    if not rows:
        return [Text("There is no best-effort workload.", "soft")]
    return [
        Table(
            caption="Largest part in what hurts a service now first",
            headings=("workload", "allowance", "hurts", "use", "its part"),
            rows=rows,
            left=3,
        ),
        *_more(len(view.workloads)),
    ]


def _parts(view: View) -> list[Part]:
    rows: list[list[Cell]] = [
        [row.service, row.channel, row.kind, row.name or "none", Share(row.share)]
        for row in view.parts[:_MOST]
    ]
    return [
        Table(
            caption="Whoever it is: workloads, cgroups outside all workloads, the host",
            headings=("service", "channel", "kind", "name", "its part"),
            rows=rows,
            left=4,
        ),
        *_more(len(view.parts)),
    ]


def _more(count: int) -> list[Part]:
    return [Text(f"{count - _MOST} more are not shown.", "soft")] if count > _MOST else []


def _channels(view: View) -> list[Part]:
    rows: list[list[Cell]] = [
        [
            row.channel,
            state_words(row.state),
            row.service or "none",
            spaced(row.knobs) or "none",
            spaced(f"{row.demand:.0%}"),
        ]
        for row in view.channels
    ]
    if not rows:
        return [Text("No channel has a loop.", "soft")]
    return [
        Table(
            caption="A demand of 100 % squeezes best-effort work to the floor.",
            headings=("channel", "state", "for service", "knobs", "demand"),
            rows=rows,
            left=4,
        )
    ]


def _decisions(status: Mapping[str, Any]) -> list[Part]:
    table = decision_table(status, _DECISIONS)
    if table is None:
        return [Text("Nothing was decided since the agent started.", "soft")]
    return [
        table,
        Text("“sweetpoint explain NAME” on the host has the story of each name.", "soft"),
    ]


def _title(status: Mapping[str, Any]) -> str:
    observes = status.get("mode") == "observe"
    return "What enforcing would bring" if observes else "What services suffered"


def _suffering(status: Mapping[str, Any]) -> list[Part]:
    """Return the suffering since the agent's start, and what enforcing takes; both are bounds."""
    observes = status.get("mode") == "observe"
    times: dict[tuple[str, str], dict[str, float]] = {}
    for each in records(status.get("suffered")):
        key = text(each.get("service")), text(each.get("channel"))
        state, time_ns = text(each.get("state")), number(each.get("time_ns")) or 0.0
        times.setdefault(key, {})[state] = time_ns
    ran_ns = number(status.get("ran_ns")) or 0.0
    parts: list[Part] = [Text(f"Since the agent started; it ran for {lasting(ran_ns)}.", "soft")]
    if not times:
        return [*parts, Text("No service was seen above a sweet point.")]
    ordered = sorted(times.items(), key=lambda item: -sum(item[1].values()))
    rows: list[list[Cell]] = []
    for (service, channel), states in ordered[:_MOST]:
        others = [
            f"{_OTHER[state]} {lasting(time_ns)}"
            for state, time_ns in states.items()
            if state in _OTHER
        ]
        caused_ns = states.get(ChannelState.SQUEEZE, 0.0)
        rows.append(
            [
                service,
                channel,
                ", ".join(others) or "none",
                lasting(sum(states.values())),
                lasting(caused_ns),
                Share(caused_ns / ran_ns if ran_ns else None),
            ]
        )
    parts.append(
        Table(
            caption="Time above a sweet point." + (_MAY_HELP * observes),
            headings=("service", "channel", "other causes", "suffered", "by best-effort", "share"),
            rows=rows,
            left=3,
        )
    )
    parts += _more(len(times))
    if observes:
        parts.append(Text(_taken(mapping(status.get("history")))))
    return parts


def _taken(history: Mapping[str, Any]) -> str:
    cut_s = number(history.get("cut_cpu_s"))
    if history.get("enabled") is not True or cut_s is None:
        return "What enforcing would have taken is N/A: no history is kept."
    return (
        f"Enforcing would have taken at most {cut_s:.0f} CPU seconds from best-effort work "
        "(CPU quotas only; an upper bound, because nothing reacts while observing). "
        "“sweetpoint advise” on the host has the details."
    )
