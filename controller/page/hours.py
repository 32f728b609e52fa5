# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What happened over time, thinned to a few hundred buckets, and the sections that show it."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from itertools import pairwise
import threading
from typing import TypeVar

from controller.core.decision import Cause, Demand, LoopReport
from controller.core.model import CgroupId
from controller.core.units import NS_PER_SEC
from controller.host.names import printable
from controller.page.chart import Chart, Marker, Point, Series
from controller.page.document import Cell, Part, Section, Share, Table, Text

__all__ = ("Bucket", "Hours", "sections")

# Bounds of one bucket and of the texts, so that the size does not grow with the node.
_MOST = 16
_MOST_HURT = 8
_EVENTS = 200
_NAME = 64
# Lines of a chart, and columns of the matrix.
_LINES = 5
_CULPRITS = 8
_STYLES = ("a", "b", "c", "d", "e")
# Between two buckets that are further apart than this multiple of their usual distance the agent
# did not run.
_GAP = 2.5
_QUIET_NS = 60 * NS_PER_SEC
_Key = TypeVar("_Key")


@dataclass(slots=True)
class Bucket:
    """The time from ``began_ns`` for a width, thinned.

    ``ratios`` are the largest values relative to their sweet points by service and indicator,
    ``demands`` the largest of each channel. ``shares`` are sums, over ``causes`` moments, of the
    part of each culprit in what hurts a service on a channel. ``cpus`` is the sum of best-effort's
    use over ``uses`` moments.
    """

    began_ns: int
    ratios: dict[tuple[str, str], float] = field(default_factory=dict)
    demands: dict[str, float] = field(default_factory=dict)
    shares: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    causes: dict[tuple[str, str], int] = field(default_factory=dict)
    cpus: float = 0.0
    uses: int = 0


class Hours:
    """Takes moments of one agent; thread-safe.

    :param width_ns: of a bucket, at first.
    :param most: buckets that are kept. When there are more, two become one.
    :param widest_ns: where a bucket would become wider than this, the oldest go instead; ``None``:
        they never go.
    """

    def __init__(self, width_ns: int, most: int, *, widest_ns: int | None = 0) -> None:
        self.width_ns = width_ns
        self._most = most
        self._widest_ns = widest_ns
        self._lock = threading.Lock()
        self._buckets: deque[Bucket] = deque()
        self._events: deque[tuple[int, str]] = deque(maxlen=_EVENTS)

    def take(
        self,
        time_ns: int,
        *,
        loops: Iterable[LoopReport],
        demands: Iterable[Demand],
        causes: Iterable[Cause] = (),
        names: Callable[[CgroupId], str] = str,
        events: Iterable[str] = (),
        be_use_cpus: float | None = None,
    ) -> None:
        """Take what a moment or a plan at *time_ns* says.

        When times fall, because the clock was wrong, what was later than now is dropped.
        """
        with self._lock:
            bucket = self._bucket(time_ns)
            for loop in loops:
                if loop.value is not None and loop.sweet_point:
                    ratio = max(0.0, loop.value / loop.sweet_point)
                    _keep_largest(bucket.ratios, (loop.service, str(loop.indicator)), ratio)
            for demand in demands:
                _keep_largest(bucket.demands, str(demand.channel), demand.applied)
            for cause in causes:
                _add_cause(bucket, cause, names)
            if be_use_cpus is not None:
                bucket.cpus += be_use_cpus
                bucket.uses += 1
            self._events.extend((time_ns, text) for text in events)

    def copy(self) -> tuple[list[Bucket], list[tuple[int, str]]]:
        """Return the buckets and the events so far; they do not change any more."""
        with self._lock:
            buckets = list(self._buckets)
            if buckets:
                last = Bucket(buckets[-1].began_ns)
                _merge(last, buckets[-1])
                buckets[-1] = last
            return buckets, list(self._events)

    def _bucket(self, time_ns: int) -> Bucket:
        began_ns = time_ns - time_ns % self.width_ns
        while self._buckets and self._buckets[-1].began_ns > began_ns + self.width_ns:
            self._buckets.pop()
        if not self._buckets or self._buckets[-1].began_ns < began_ns:
            self._buckets.append(Bucket(began_ns))
            if len(self._buckets) > self._most:
                if self._widest_ns is None or 2 * self.width_ns <= self._widest_ns:
                    self._widen()
                else:
                    self._buckets.popleft()
        return self._buckets[-1]

    def _widen(self) -> None:
        self.width_ns *= 2
        wide: deque[Bucket] = deque()
        for each in self._buckets:
            began_ns = each.began_ns - each.began_ns % self.width_ns
            if not wide or wide[-1].began_ns < began_ns:
                wide.append(Bucket(began_ns))
            _merge(wide[-1], each)
        self._buckets = wide


def sections(hours: Hours, zone: tzinfo | None = None) -> Iterator[Section]:
    """Yield the time lines, and the blame over the whole time.

    :param zone: of the times of day, if the times of *hours* count from 1970; without it they are
        shown as seconds from the first one.
    """
    buckets, events = hours.copy()
    if not buckets:
        yield Section(title="Over time", parts=(Text("Nothing is known yet.", "soft"),))
        return
    first_ns = buckets[0].began_ns
    since = None if zone is None else datetime.fromtimestamp(first_ns / NS_PER_SEC, zone)
    seconds = (buckets[-1].began_ns + hours.width_ns - first_ns) / NS_PER_SEC
    # A recording has its ticks; a history has a moment a minute of times in which nothing happens.
    lines = _Lines(buckets, hours.width_ns if since is None else _QUIET_NS)
    marks = [
        Marker((time_ns - first_ns) / NS_PER_SEC, printable(text))
        for time_ns, text in events
        if time_ns >= first_ns
    ]

    def chart(title: str, unit: str, series: Sequence[Series], log: bool = False) -> Chart:
        return Chart(
            title=title,
            unit=unit,
            seconds=seconds,
            series=series,
            markers=marks,
            log=log,
            since=since,
        )

    parts: list[Part] = []
    if since is not None:
        parts.append(Text(f"Times are those of the agent's host ({since:%Z}).", "soft"))
    parts += [
        chart(
            "Services relative to their sweet points, the worst moment of each "
            + _width(hours.width_ns),
            "times (log)",
            [*lines.ratios(), lines.goal(seconds)],
            log=True,
        ),
        chart(
            "Demand of the channels (0 free, 100 squeezed to the floor)", "percent", lines.demands()
        ),
    ]
    if any(each.uses for each in buckets):
        parts.append(chart("CPU time that best-effort work used", "CPUs", [lines.use()]))
    if marks:
        parts.append(Text("Triangles are decisions; the last ones are listed below.", "soft"))
    yield Section(title="Over time", parts=parts)
    yield Section(title="Blame", parts=(_matrix(buckets),))


class _Lines:
    """The lines of the charts. A line has a gap where the agent did not run."""

    def __init__(self, buckets: Sequence[Bucket], least_ns: int) -> None:
        self._buckets = buckets
        self._first_ns = buckets[0].began_ns
        apart = sorted(after.began_ns - each.began_ns for each, after in pairwise(buckets))
        # Snapshots of the history are further apart than the narrowest bucket is wide.
        self._apart_ns = max(least_ns, apart[len(apart) // 2] if apart else 0)

    def goal(self, seconds: float) -> Series:
        return Series(label="sweet point", style="goal", points=((0.0, 1.0), (seconds, 1.0)))

    def ratios(self) -> list[Series]:
        peaks: dict[tuple[str, str], float] = {}
        for each in self._buckets:
            for key, ratio in each.ratios.items():
                peaks[key] = max(ratio, peaks.get(key, 0.0))
        worst = sorted(peaks, key=lambda key: (-peaks[key], key))[:_LINES]
        return [
            # A ratio of 0 has no place on a logarithmic axis.
            self._line(
                _printable(" ".join(key)),
                style,
                [each.ratios.get(key) or None for each in self._buckets],
            )
            for key, style in zip(worst, _STYLES, strict=False)
        ]

    def demands(self) -> list[Series]:
        channels = sorted({channel for each in self._buckets for channel in each.demands})
        return [
            self._line(
                channel,
                style,
                [_percent(each.demands.get(channel)) for each in self._buckets],
                step=True,
            )
            for channel, style in zip(channels, _STYLES, strict=False)
        ]

    def use(self) -> Series:
        cpus = [each.cpus / each.uses if each.uses else None for each in self._buckets]
        return self._line("best-effort", "f", cpus)

    def _line(
        self,
        label: str,
        style: str,
        values: Sequence[float | None],
        *,
        step: bool = False,
    ) -> Series:
        points: list[Point] = []
        last_ns = self._first_ns
        for each, value in zip(self._buckets, values, strict=True):
            time_s = (each.began_ns - self._first_ns) / NS_PER_SEC
            if each.began_ns - last_ns > _GAP * self._apart_ns:
                points.append((time_s, None))
            points.append((time_s, value))
            last_ns = each.began_ns
        return Series(label=label, style=style, points=points, step=step)


def _matrix(buckets: Sequence[Bucket]) -> Part:
    """Return the average part of each culprit in what hurt each service while it was hurt."""
    sums: dict[tuple[str, str], dict[str, float]] = {}
    counts: dict[tuple[str, str], int] = {}
    for each in buckets:
        for key, count in each.causes.items():
            counts[key] = counts.get(key, 0) + count
            _add(sums.setdefault(key, {}), each.shares[key])
    if not counts:
        return Text("Nothing hurt a service in this time, or it is not known what.", "soft")
    total: dict[str, float] = {}
    for shares in sums.values():
        _add(total, shares)
    culprits = sorted(total, key=lambda name: (-total[name], name))[:_CULPRITS]
    rows: list[list[Cell]] = []
    for key in sorted(counts, key=lambda key: -counts[key])[:_MOST]:
        parts = {name: share / counts[key] for name, share in sums[key].items()}
        rest = 1.0 - sum(parts.get(name, 0.0) for name in culprits)
        row: list[Cell] = [_printable(f"{key[0]} on {key[1]}")]
        row += [Share(parts.get(name)) for name in culprits]
        rows.append([*row, Share(max(0.0, rest))])
    return Table(
        caption="Part of each workload in what hurt a service, on average while it was hurt",
        headings=("service", *map(_printable, culprits), "all others"),
        rows=rows,
    )


def _add_cause(bucket: Bucket, cause: Cause, names: Callable[[CgroupId], str]) -> None:
    key = cause.service, str(cause.channel)
    if key not in bucket.causes and len(bucket.causes) >= _MOST_HURT:
        return
    bucket.causes[key] = bucket.causes.get(key, 0) + 1
    shares = bucket.shares.setdefault(key, {})
    for culprit in cause.culprits:
        name = names(culprit.cgroup)
        if name in shares or len(shares) < _MOST_HURT:
            shares[name] = shares.get(name, 0.0) + culprit.share


def _merge(into: Bucket, other: Bucket) -> None:
    for pair, ratio in other.ratios.items():
        _keep_largest(into.ratios, pair, ratio)
    for channel, demand in other.demands.items():
        _keep_largest(into.demands, channel, demand)
    for key, count in other.causes.items():
        into.causes[key] = into.causes.get(key, 0) + count
        _add(into.shares.setdefault(key, {}), other.shares[key])
    into.cpus += other.cpus
    into.uses += other.uses


def _keep_largest(values: dict[_Key, float], key: _Key, value: float) -> None:
    """Take *value* if it is the largest of *key*; only the keys with the largest values stay."""
    if value > values.get(key, -1.0):
        values[key] = value
        if len(values) > _MOST:
            del values[min(values, key=values.__getitem__)]


def _add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0.0) + value


def _width(width_ns: int) -> str:
    seconds = width_ns / NS_PER_SEC
    if seconds < 0.75:
        return f"{seconds:.1g} s"
    return {1: "second", 60: "minute"}.get(round(seconds), f"{seconds:.0f} s")


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _printable(text: str) -> str:
    return printable(text if len(text) <= _NAME else f"{text[: _NAME - 1]}…")
