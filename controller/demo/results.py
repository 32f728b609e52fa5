# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a demonstration measured, and the arithmetic from raw numbers to one table row.

Book-keeping of an open-loop load generator: what became of each request, per second.

A request belongs to the second in which it was *intended* to be sent and its latency counts
from that instant. A service that stalls for a second therefore shows a second of bad
latencies and not one bad request (Gil Tene's "coordinated omission"). A request that failed
or timed out counts as the longest latency that the generator waits for, so that losing
requests never improves a percentile.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
import math

from controller.core.units import NS_PER_SEC, NS_PER_US

__all__ = (
    "Ledger",
    "LoadSecond",
    "Phase",
    "Row",
    "Run",
    "Sample",
    "SecondOfLoad",
    "Work",
    "longest_calm_s",
    "quantile",
    "summarise",
    "windows",
)


def quantile(values: Sequence[float], q: float) -> float | None:
    """Return the *q* quantile of *values* by nearest rank, None of nothing.

    :raises ValueError: *q* is not in (0, 1].
    """
    if not 0 < q <= 1:
        raise ValueError(f"quantile {q} is not in (0, 1]")
    if not values:
        return None
    return sorted(values)[math.ceil(q * len(values)) - 1]


@dataclass(slots=True, kw_only=True)
class SecondOfLoad:
    """All requests that were intended for one second of the schedule.

    ``late_us`` is the generator's own lateness, actual minus intended send time, of those
    requests for which a connection was free: it says how far the latencies can be trusted.
    ``queued`` requests had to wait for a connection, which is the service's fault and
    therefore part of their latency only.
    """

    index: int
    latency_us: list[int] = field(default_factory=list)
    late_us: list[int] = field(default_factory=list)
    queued: int = 0
    errors: int = 0
    timeouts: int = 0
    pending: int = 0


class Ledger:
    """Collects results and hands out seconds, in order, once nothing of them is pending."""

    def __init__(self, start_ns: int, timeout_ns: int) -> None:
        self._start_ns = start_ns
        self._timeout_us = timeout_ns // NS_PER_US
        self._open: dict[int, SecondOfLoad] = {}
        self._next = 0
        self.pending = 0

    def due(self, intended_ns: int) -> None:
        """Note that a request fell due; it is pending until one of the other calls ends it."""
        self._second(intended_ns).pending += 1
        self.pending += 1

    def sent(self, intended_ns: int, now_ns: int) -> None:
        """Note that a connection was free and the request left at *now_ns*."""
        self._second(intended_ns).late_us.append((now_ns - intended_ns) // NS_PER_US)

    def queued(self, intended_ns: int) -> None:
        """Note that no connection was free when the request fell due."""
        self._second(intended_ns).queued += 1

    def answered(self, intended_ns: int, now_ns: int) -> None:
        """Note a complete, good response."""
        self._end(intended_ns, (now_ns - intended_ns) // NS_PER_US)

    def failed(self, intended_ns: int) -> None:
        """Note a broken connection or a response that is not 200."""
        self._end(intended_ns, self._timeout_us).errors += 1

    def timed_out(self, intended_ns: int) -> None:
        """Note that nobody waits for the answer any more."""
        self._end(intended_ns, self._timeout_us).timeouts += 1

    def completed(self, scheduled_to_ns: int) -> list[SecondOfLoad]:
        """Return the finished seconds; nothing will fall due before *scheduled_to_ns*."""
        done = []
        while self._next < (scheduled_to_ns - self._start_ns) // NS_PER_SEC:
            second = self._open.get(self._next) or SecondOfLoad(index=self._next)
            if second.pending:
                break
            self._open.pop(self._next, None)
            done.append(second)
            self._next += 1
        return done

    def _second(self, intended_ns: int) -> SecondOfLoad:
        index = (intended_ns - self._start_ns) // NS_PER_SEC
        second = self._open.get(index)
        if second is None:
            second = self._open[index] = SecondOfLoad(index=index)
        return second

    def _end(self, intended_ns: int, latency_us: int) -> SecondOfLoad:
        second = self._second(intended_ns)
        second.latency_us.append(latency_us)
        second.pending -= 1
        self.pending -= 1
        return second


# The first seconds of a phase: programs start, the agent has no full window yet.
DROPPED_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSecond:
    """One second of requests; ``start_s`` counts from the start of the phase."""

    start_s: float
    latency_us: tuple[int, ...]
    late_us: tuple[int, ...]
    queued: int
    errors: int
    timeouts: int
    generator_cpu_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at the agent and at the cgroups; times count from the start of the phase.

    ``runq_p99_ms`` is the 99th percentile over the waits, ``delay_p99_ms`` what 99 of 100
    arrivals wait at most, each with its sweet point; the deviations are those of the loop that
    deviates most. ``be_quota_cpus`` is the tightest quota on a best-effort cgroup, None without
    any. ``be_oncpu_s``, ``ls_oncpu_s`` and ``steal_s`` are counters, in CPU seconds.
    """

    time_s: float
    runq_p99_ms: float | None = None
    sweet_point_ms: float | None = None
    delay_p99_ms: float | None = None
    delay_sweet_point_ms: float | None = None
    deviation: float | None = None
    filtered_deviation: float | None = None
    demand: float | None = None
    state: str | None = None
    be_quota_cpus: float | None = None
    be_idle: bool | None = None
    ls_oncpu_s: float = 0.0
    be_oncpu_s: float = 0.0
    steal_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a best-effort job got done in *seconds*; None: it keeps no account in between."""

    job: str
    unit: str
    amount: float | None
    seconds: float

    @property
    def rate(self) -> float | None:
        """Work per second."""
        return None if self.amount is None else self.amount / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of one round. ``key`` is equal in all rounds, ``against`` what it compares to.

    ``title`` is for people; ``mode`` is that of the agent.
    """

    key: str
    title: str
    mode: str
    seconds: float
    against: str | None
    load: tuple[LoadSecond, ...]
    samples: tuple[Sample, ...]
    work: Work | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A whole demonstration."""

    simulated: bool
    environment: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: a phase, pooled over its rounds.

    ``runq_p99_ms`` and ``delay_p99_ms`` are medians over the one-second windows, ``violations``
    is the share of the windows in which either was over its sweet point.
    ``work_ratio`` is relative to the phase ``against``.
    """

    title: str
    p50_ms: float | None
    p99_ms: float | None
    runq_p99_ms: float | None
    sweet_point_ms: float | None
    delay_p99_ms: float | None
    delay_sweet_point_ms: float | None
    windows: int
    violations: float | None
    work_rate: float | None
    work_unit: str
    work_ratio: float | None
    ls_cpus: float | None
    be_cpus: float | None
    late_p99_ms: float | None
    failed: int


def windows(phase: Phase) -> list[Sample]:
    """Return the last sample of each one-second window after the dropped seconds.

    The agent's indicator is taken over the last second, so these windows do not overlap
    (but for its tick). A window in which nothing could be measured is left out.
    """
    last: dict[int, Sample] = {}
    for sample in phase.samples:
        if DROPPED_S <= sample.time_s < phase.seconds and _is_measured(sample):
            last[int(sample.time_s)] = sample
    return [last[second] for second in sorted(last)]


def summarise(phases: Sequence[Phase]) -> list[Row]:
    """Return one row per ``key`` of *phases*, in order of first appearance."""
    keys = dict.fromkeys(phase.key for phase in phases)
    pools = {key: [phase for phase in phases if phase.key == key] for key in keys}
    return [_row(pool, pools.get(pool[0].against or "", [])) for pool in pools.values()]


def longest_calm_s(phase: Phase, most: float) -> float:
    """Return the longest time for which the filtered deviation stayed within +-*most*."""
    longest = 0.0
    since: float | None = None
    for sample in phase.samples:
        deviation = sample.filtered_deviation
        if deviation is None or abs(deviation) > most:
            since = None
        else:
            since = sample.time_s if since is None else since
            longest = max(longest, sample.time_s - since)
    return longest


def counted_load(phase: Phase) -> list[LoadSecond]:
    """Return the seconds of load that count: whole ones after the dropped ones."""
    return [s for s in phase.load if DROPPED_S <= s.start_s <= phase.seconds - 1]


def _row(pool: Sequence[Phase], against: Sequence[Phase]) -> Row:
    load = [second for phase in pool for second in counted_load(phase)]
    latency = [us for second in load for us in second.latency_us]
    late = [us for second in load for us in second.late_us]
    seen = [sample for phase in pool for sample in windows(phase)]
    runq = [sample.runq_p99_ms for sample in seen if sample.runq_p99_ms is not None]
    delay = [sample.delay_p99_ms for sample in seen if sample.delay_p99_ms is not None]
    over = [s for s in seen if _is_over(s)]
    work, base = _rate(pool), _rate(against)
    return Row(
        title=pool[0].title,
        p50_ms=_ms(quantile(latency, 0.5)),
        p99_ms=_ms(quantile(latency, 0.99)),
        runq_p99_ms=quantile(runq, 0.5),
        sweet_point_ms=next((s.sweet_point_ms for s in seen if s.sweet_point_ms), None),
        delay_p99_ms=quantile(delay, 0.5),
        delay_sweet_point_ms=next(
            (s.delay_sweet_point_ms for s in seen if s.delay_sweet_point_ms), None
        ),
        windows=len(seen),
        violations=len(over) / len(seen) if seen else None,
        work_rate=work,
        work_unit=pool[0].work.unit if pool[0].work else "",
        work_ratio=work / base if work is not None and base else None,
        ls_cpus=_cpus(pool, "ls_oncpu_s"),
        be_cpus=_cpus(pool, "be_oncpu_s"),
        late_p99_ms=_ms(quantile(late, 0.99)),
        failed=sum(second.errors + second.timeouts for second in load),
    )


def _is_over(sample: Sample) -> bool:
    pairs = (
        (sample.runq_p99_ms, sample.sweet_point_ms),
        (sample.delay_p99_ms, sample.delay_sweet_point_ms),
    )
    return any(
        value is not None and sweet_point is not None and value > sweet_point
        for value, sweet_point in pairs
    )


def _is_measured(sample: Sample) -> bool:
    return sample.runq_p99_ms is not None or sample.delay_p99_ms is not None


def _rate(pool: Sequence[Phase]) -> float | None:
    works = [phase.work for phase in pool if phase.work is not None]
    amounts = [work.amount for work in works if work.amount is not None]
    if not amounts or len(amounts) < len(pool):
        return None
    return sum(amounts) / sum(work.seconds for work in works)


def _cpus(pool: Sequence[Phase], counter: str) -> float | None:
    used = elapsed = 0.0
    for phase in pool:
        counted = [s for s in phase.samples if s.time_s >= DROPPED_S]
        if len(counted) > 1:
            used += getattr(counted[-1], counter) - getattr(counted[0], counter)
            elapsed += counted[-1].time_s - counted[0].time_s
    return used / elapsed if elapsed else None


def _ms(us: float | None) -> float | None:
    return None if us is None else us / 1000
