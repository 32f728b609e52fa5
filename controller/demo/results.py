# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Results of a demonstration: records of its phases, and aggregation to table rows."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
import math

__all__ = (
    "LoadSecond",
    "MemoryRun",
    "Phase",
    "Row",
    "Run",
    "Sample",
    "Work",
    "is_over",
    "longest_calm_s",
    "quantile",
    "rounds",
    "summarise",
    "windows",
)

# The first seconds of a phase are not counted: programs start, and the agent has no full window.
DROPPED_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSecond:
    """One second of requests in a phase; ``start_s`` is relative to the start of the phase.

    The other fields are those of ``SecondOfLoad``, and the generator's CPU time in that second.
    """

    start_s: float
    latency_us: tuple[int, ...]
    late_us: tuple[int, ...]
    queued: int
    errors: int
    timeouts: int
    generator_cpu_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """State of the agent and the cgroups at ``time_s`` after the start of the phase.

    ``runq_p99_ms`` is the 99th percentile of the waits for a CPU, ``delay_p99_ms`` that of the
    delay of an arrival at a random time, each with its sweet point. The deviations are the
    largest of all loops. ``be_quota_cpus`` is the smallest quota of a best-effort cgroup, None
    without quota. ``be_oncpu_s``, ``ls_oncpu_s`` and ``steal_s`` are counters, in CPU seconds.
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
    """Work of a best-effort job in ``seconds``.

    ``amount`` is None if unknown: a job reports its work only at its end.
    """

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
    """One phase of one round.

    ``key`` is equal in all rounds, ``against`` is the key of the unmanaged phase to compare with,
    ``title`` the name in texts, ``mode`` the mode of the agent.
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
class MemoryRun:
    """A memory phase with the agent in *mode*: whether the service *lived*.

    ``seconds`` is from the moment at which it began to grow until it ended, or had lived with all
    it ``needed_mib`` for a while. ``jobs_ended`` counts processes of batch work.
    """

    mode: str
    lived: bool
    seconds: float
    held_mib: int
    needed_mib: int
    jobs_ended: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A whole demonstration; ``memory`` is empty where its phases were left out."""

    simulated: bool
    environment: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    phases: tuple[Phase, ...]
    memory: tuple[MemoryRun, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table: a phase, pooled over its rounds.

    ``runq_p99_ms`` and ``delay_p99_ms`` are medians over the one-second windows; ``violations``
    is the share of windows in which one of both was above its sweet point. ``work_ratio`` is
    relative to the phase ``against``. ``failed`` counts errors and time-outs of requests,
    ``steal_cpus`` is what the hypervisor took.
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
    steal_cpus: float | None


def quantile(values: Sequence[float], q: float) -> float | None:
    """Return the *q* quantile of *values* by nearest rank, None without values.

    :raises ValueError: *q* is not in (0, 1].
    """
    if not 0 < q <= 1:
        raise ValueError(f"quantile {q} is not in (0, 1]")
    if not values:
        return None
    return sorted(values)[math.ceil(q * len(values)) - 1]


def windows(phase: Phase) -> list[Sample]:
    """Return the last sample of each one-second window after the dropped seconds.

    The agent computes its indicators over the last second, so the windows overlap by at most a
    tick. Windows without a measurement are left out.
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


def rounds(phases: Sequence[Phase]) -> list[list[Phase]]:
    """Return the phases of each round: the first of each ``key``, then the second of each."""
    found: list[list[Phase]] = []
    seen: Counter[str] = Counter()
    for phase in phases:
        if seen[phase.key] == len(found):
            found.append([])
        found[seen[phase.key]].append(phase)
        seen[phase.key] += 1
    return found


def longest_calm_s(phase: Phase, most: float) -> float:
    """Return the longest time in s for which the filtered deviation was within +-*most*."""
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
    """Return the whole seconds of load after the dropped seconds."""
    return [s for s in phase.load if DROPPED_S <= s.start_s <= phase.seconds - 1]


def _row(pool: Sequence[Phase], against: Sequence[Phase]) -> Row:
    load = [second for phase in pool for second in counted_load(phase)]
    latency = [us for second in load for us in second.latency_us]
    late = [us for second in load for us in second.late_us]
    seen = [sample for phase in pool for sample in windows(phase)]
    runq = [sample.runq_p99_ms for sample in seen if sample.runq_p99_ms is not None]
    delay = [sample.delay_p99_ms for sample in seen if sample.delay_p99_ms is not None]
    over = [s for s in seen if is_over(s)]
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
        steal_cpus=_cpus(pool, "steal_s"),
    )


def is_over(sample: Sample) -> bool:
    """Return whether one of both latencies was above its sweet point."""
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
