# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What ``explain`` and ``advise`` tell of a time agrees with the ticks of that time."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
import contextlib
from dataclasses import dataclass
from datetime import datetime
import io
from itertools import pairwise
import json
import math
from pathlib import Path
from typing import Any

import pytest

from controller.agent.history.episodes import PAUSE_NS
from controller.agent.history.reader import HistoryReader
from controller.agent.history.records import MOMENTS, Line, Moment
from controller.cli.main import main
from controller.core.decision import PartKind
from controller.core.eviction.causes import REST
from controller.core.in_force import Limited
from controller.core.indicators.blame import blame_deltas
from controller.core.knob_values import cpus_of
from controller.core.model import CgroupId, KnobValue, QosClass, Workload
from controller.telemetry.suffering import SufferingClock
from tests.support.agreement.seen import Seen, fresh

__all__ = (
    "Told",
    "check_culprits",
    "check_squeezes",
    "check_suffered",
    "check_verdicts",
    "check_worst",
    "largest_parts",
)


# Kind and name of a part.
_Who = tuple[str, str]


@dataclass(frozen=True)
class _Second:
    """A moment of the history with its ticks.

    Its end is ``wall_ns`` in ns since 1970, ``time_ns`` by CLOCK_MONOTONIC.
    """

    wall_ns: int
    time_ns: int
    ticks: tuple[Seen, ...]

    @property
    def ms(self) -> int:
        """``wall_ns`` in ms, as ``explain`` prints it."""
        return self.ms_of(self.time_ns)

    def ms_of(self, time_ns: int) -> int:
        """Return a time of CLOCK_MONOTONIC in ms, as ``explain`` prints it."""
        return round((self.wall_ns - self.time_ns + time_ns) / 1e3) // 1000


class Told:
    """The history in *data_dir*, of an agent whose ticks were *seen*; *since*: an option."""

    def __init__(self, data_dir: Path, seen: Sequence[Seen], since: str) -> None:
        self.seen, self._data_dir, self._since = seen, data_dir, since
        lines = HistoryReader(data_dir, MOMENTS).lines()
        # Of cgroups outside all workloads, also those that left.
        self.paths = {each.cgroup: each.path for tick in seen for each in tick.snapshot.outside}
        times_ns = [each.time_ns for each in seen]
        self.moments: list[_Second] = []
        begin = 0
        for line in lines:
            if isinstance(line, Line) and isinstance(line.record, Moment):
                end = bisect_right(times_ns, line.record.time_ns)
                self.moments.append(
                    _Second(line.wall_ns, line.record.time_ns, tuple(seen[begin:end]))
                )
                begin = end

    def between(self, began_ms: float, ended_ms: float) -> Iterator[Seen]:
        """Yield the ticks of the moments between two times, in ms since 1970."""
        for second in self.moments:
            if began_ms <= second.ms <= ended_ms:
                yield from second.ticks

    def run(self, *words: str) -> str:
        """Return what the command prints."""
        out = io.StringIO()
        words += ("--data-dir", str(self._data_dir), "--since", self._since)
        with contextlib.redirect_stdout(out):
            assert main([*words]) == 0
        return out.getvalue()

    def incidents(self, name: str, kind: str) -> list[dict[str, Any]]:
        """Return the incidents of one kind that ``explain`` has of *name*."""
        found = json.loads(self.run("explain", name, "--json"))["incidents"]
        return [each for each in found if each["kind"] == kind]

    def advice(self) -> list[dict[str, Any]]:
        """Return what ``advise`` has of the services."""
        return list(json.loads(self.run("advise", "--json"))["services"])


def check_squeezes(told: Told, job: Workload) -> int:
    """Check since when, until when, how much and why *job* is said to have been limited.

    Return how many seconds are judged: those in which it was limited all the time, or never.
    """
    squeezes = told.incidents(job.name, "squeeze")
    spans = [(_ms(each["began"]), _ms(each["ended"])) for each in squeezes]
    judged, last = 0, None
    for second in told.moments:
        limited = {tick.record.of(job.cgroup) is not None for tick in second.ticks}
        if second.ticks and len(limited | ({last} - {None})) == 1:
            judged += 1
            covered = any(began <= second.ms < ended for began, ended in spans)
            assert limited == {covered}, (job.name, second.wall_ns)
        last = second.ticks[-1].record.of(job.cgroup) is not None if second.ticks else last
    for squeeze, (began, ended) in zip(squeezes, spans, strict=True):
        inside = list(_limits(told, job.cgroup, began, ended))
        assert began in _begins(told, job.cgroup), (job.name, squeeze["began"])
        (knob,) = squeeze["knobs"]
        assert cpus_of(KnobValue(knob["strictest"])) == min(each.cpus or 9.0 for each in inside)
        services = {each.main.service for each in inside}
        assert {squeeze["service"], *squeeze["also"]} == services, squeeze
    return judged


def _limits(told: Told, cgroup: CgroupId, began_ms: float, ended_ms: float) -> Iterator[Limited]:
    """Yield the records of the squeeze that *began_ms*; the next one may begin in its last tick."""
    for second in told.moments:
        if not began_ms <= second.ms <= ended_ms:
            continue
        for tick in second.ticks:
            limited = tick.record.of(cgroup)
            if limited is not None and second.ms_of(limited.since_ns) == began_ms:
                yield limited


def _begins(told: Told, cgroup: CgroupId) -> set[int]:
    return {
        second.ms_of(limited.since_ns)
        for second in told.moments
        for tick in second.ticks
        if (limited := tick.record.of(cgroup)) is not None
    }


def check_worst(told: Told, service: str) -> float:
    """Check that "at worst" is the largest raw value while *service* suffered; return it in ns.

    A peak that the filter of the loop hides is no suffering. One soon after an incident, which a
    relapse would continue, may count.
    """
    explained: dict[tuple[str, str], float] = {}
    for incident in told.incidents(service, "suffering"):
        place, value = _place(incident, incident["loop"]), incident["loop"]["value"]
        began, ended = _ms(incident["began"]), _ms(incident["ended"])
        inside, around = (
            [
                loop.value or 0.0
                for tick in told.between(began, end)
                for loop in fresh(tick.plan, service)
                if (loop.channel, loop.indicator) == place
            ]
            for end in (ended, ended + PAUSE_NS / 1e6)
        )
        assert max(inside) <= value, (service, incident["began"], place)
        assert value in around, (service, incident["began"], place)
        explained[place] = max(value, explained.get(place, 0.0))
    for advice in told.advice():
        if advice["service"] == service:
            worst = max((e["worst"] for e in advice["modes"].values()), key=lambda e: e["value"])
            assert worst["value"] == explained[_place(advice, worst)], (service, worst)
    return max(explained.values())


def _place(each: dict[str, Any], loop: dict[str, Any]) -> tuple[str, str]:
    return each["channel"], loop["indicator"]


def check_suffered(told: Told) -> None:
    """Check how long services suffered by ``advise`` and ``explain``, and for how long limited."""
    clock, by_tick = SufferingClock(), dict[tuple[str, str], int]()
    for tick in told.seen:
        for (service, channel, _), time_ns in clock.update(tick.plan).items():
            by_tick[service, channel] = by_tick.get((service, channel), 0) + time_ns
    advice = told.advice()
    assert {(each["service"], each["channel"]) for each in advice} == by_tick.keys()
    for each in advice:
        name, channel = each["service"], each["channel"]
        advised = sum(times["suffered_ns"] for times in each["modes"].values())
        found = [x for x in told.incidents(name, "suffering") if x["channel"] == channel]
        explained = sum(sum(one["states_ns"].values()) for one in found)
        assert advised == pytest.approx(by_tick[name, channel], abs=1e9)
        assert explained == pytest.approx(by_tick[name, channel], abs=2e9)


def check_verdicts(told: Told, services: Iterable[str], jobs: Iterable[str]) -> None:
    """Check that a job's story says of a squeeze what the service's says."""
    effects = [
        each["effect"] for service in services for each in told.incidents(service, "suffering")
    ]
    for job in jobs:
        for squeeze in told.incidents(job, "squeeze"):
            assert squeeze["effect"] in effects, (job, squeeze)


def largest_parts(told: Told, service: str) -> list[_Who]:
    """Return kind and name of what hurt *service* most in each incident."""
    found = told.incidents(service, "suffering")
    return [(each["parts"][0]["kind"], each["parts"][0]["name"]) for each in found]


def check_culprits(told: Told, service: str) -> list[_Who]:
    """Check that who was measured to make *service* wait most is named in each incident on the CPU.

    The parts of an incident are averages over its time, the waits are sums, so the first two may
    change places. Return who was measured to be the largest.
    """
    found = []
    for incident in told.incidents(service, "suffering"):
        ticks = list(told.between(_ms(incident["began"]), _ms(incident["ended"])))
        waits = _waits(told, ticks, service)
        if incident["channel"] != "cpu" or not waits:
            continue
        measured = sorted(waits, key=lambda who: -waits[who])
        parts = [(each["kind"], each["name"]) for each in incident["parts"]]
        named = [each for each in parts if each[0] not in (PartKind.SELF, PartKind.HOST)]
        assert all(name for kind, name in named if kind != PartKind.UNKNOWN), parts
        assert measured[0] in named, (incident["began"], waits, parts)
        assert named[0] in measured[:2], (incident["began"], waits, parts)
        found.append(measured[0])
    return found


def _waits(told: Told, ticks: Sequence[Seen], service: str) -> dict[_Who, int]:
    waits: dict[_Who, int] = {}
    for last, tick in pairwise(ticks):
        victims = {w.cgroup for w in tick.workloads if w.service == service}
        for victim, culprit, known, wait_ns in blame_deltas(
            last.snapshot.blame, tick.snapshot.blame
        ):
            if victim in victims:
                who = _who(told, tick, culprit, known)
                waits[who] = waits.get(who, 0) + wait_ns
    return waits


def _who(told: Told, tick: Seen, culprit: CgroupId | None, known: bool) -> _Who:
    if culprit is None:
        return (PartKind.OUTSIDE, REST) if known else (PartKind.UNKNOWN, "")
    for each in tick.workloads:
        if each.cgroup == culprit:
            if each.qos is QosClass.BE:
                return PartKind.BEST_EFFORT, each.name
            return PartKind.SERVICE, each.service
    return PartKind.OUTSIDE, told.paths[culprit]


def _ms(text: str | None) -> float:
    return math.inf if text is None else round(datetime.fromisoformat(text).timestamp() * 1e3)
