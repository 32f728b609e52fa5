# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The memory guard: limits best-effort work to the room, before it needs more.

The limit is in force all the time, because a job may take gigabytes within a tick. It is moved with
the room: raised at once, lowered no further than ``limit_bytes`` allows. On v2 a workload that
requested memory has its request as a limit of its own from its arrival on, so that the kernel ends
nothing else for it. One that runs already may have grown, and a new limit could end it later.
"""

from collections.abc import Iterable, Mapping
import math

from controller.core.decision import Action, MemoryReport, Verdict
from controller.core.harm.cut import allocate
from controller.core.knob_values import format_amount, parse_amount
from controller.core.knobs.knob_state import KnobState
from controller.core.memory.room import (
    SOON_BYTES,
    RoomMeter,
    capacity_bytes,
    limit_bytes,
    margin_bytes,
    squeezed_bytes,
)
from controller.core.model import CgroupId, Knob, MemorySample, MemoryUse, Mode
from controller.core.pace.limiters import HoldOffLatch
from controller.core.settings import Settings
from controller.core.units import MIB, NS_PER_SEC, format_bytes
from controller.core.workload_index import WorkloadIndex

__all__ = ("MemoryGuardian",)

_NO_SHARES: Mapping[CgroupId, float] = {}
# Shares are set from this distance to the room, or half of the margin if that is less, and renewed
# once a second. They go when they were not needed for a while, as a squeeze does.
_NEAR = 64 * MIB
_LEAST_SHARE = 16.0 * MIB
# Limits are moved by this part of the capacity at least: less is noise. In a squeeze of v1 a step
# has 64 MiB at most.
_QUANTUM = 1 / 256
_SQUEEZE_QUANTUM = 8 * MIB
# A workload that uses no more than this part of its request has just arrived.
_ARRIVING = 1 / 4


class MemoryGuardian:
    """Moves memory.max of the cgroups of ``WorkloadIndex.memory_targets``, in enforce mode only.

    Valid after ``update``: ``report`` describes the last look; ``None``: the guard is off, or
    nothing was measured yet. ``verdicts`` say what changed in this tick. ``shares`` is what each
    best-effort workload may need while the room is short, for memory.high: below its limit the
    kernel slows a workload down that grows, and ends none. They are in proportion to the needs.
    v1 has no memory.high: there a squeeze for a service lowers the limits, see ``squeezed_bytes``.
    """

    __slots__ = (
        "_arrived",
        "_fresh",
        "_is_short",
        "_latch",
        "_limited",
        "_meter",
        "_requested",
        "_sample",
        "_shared_ns",
        "_tops",
        "_unlimited",
        "report",
        "shares",
        "verdicts",
    )

    def __init__(self) -> None:
        self._meter = RoomMeter()
        self._sample: MemorySample | None = None
        self._fresh = False
        self._limited: tuple[MemoryUse, ...] = ()
        self._requested = _NO_SHARES
        # Of the workloads with a request: whether they were seen to arrive.
        self._arrived: dict[CgroupId, bool] = {}
        self._is_short = False
        self._latch = HoldOffLatch()
        self._shared_ns = 0
        self._unlimited = 0
        # What each cgroup of v1 used when the present squeeze began.
        self._tops: dict[CgroupId, int] = {}
        self.report: MemoryReport | None = None
        self.shares: Mapping[CgroupId, float] = _NO_SHARES
        self.verdicts: list[Verdict] = []

    @property
    def is_near(self) -> bool:
        """Whether so little memory is available that it may be gone within a second."""
        report = self.report
        return report is not None and report.available_bytes < SOON_BYTES

    @property
    def guarded(self) -> frozenset[CgroupId]:
        """The cgroups whose limit the guard moves now; none while it is off."""
        report = self.report
        return frozenset(() if report is None else (each.cgroup for each in self._limited))

    def update(
        self, sample: MemorySample | None, settings: Settings, index: WorkloadIndex, now_ns: int
    ) -> None:
        """Take the measurements of this tick."""
        self.verdicts = []
        guard = settings.memory
        capacity = None if guard is None else capacity_bytes(guard, settings.host)
        if guard is None or capacity is None or settings.mode is not Mode.ENFORCE:
            self.report, self._sample, self.shares = None, None, _NO_SHARES
            return
        self._fresh = sample is not None and sample is not self._sample
        if sample is None or not self._fresh:
            return
        self._sample = sample
        margin = margin_bytes(guard, settings.host)
        room = self._meter.update(now_ns, sample.others_bytes, capacity, margin)
        self._limited = tuple(
            each for each in sample.limited if each.cgroup in index.memory_targets
        )
        self.report = MemoryReport(
            capacity_bytes=capacity,
            margin_bytes=margin,
            others_bytes=self._meter.others_bytes,
            room_bytes=room,
            needed_bytes=sum(each.needed_bytes for each in self._limited),
            available_bytes=sample.available_bytes,
            limited=len(self._limited),
            unlimited=sum(each.memory_at is None for each in index.best_effort.values()),
        )
        self._find_arrivals(sample, index)
        self._judge(self.report)
        self._share(self.report, sample.workloads, index, now_ns)

    def actions(
        self, knobs: KnobState, resync: bool, now_ns: int, part: float = 0.0, why: str = ""
    ) -> list[Action]:
        """Return the writes of memory.max in this tick.

        *part* of the page cache is to go, on v1 only, *why*: the service that suffers.
        """
        if self.report is None:
            return _restore(knobs, "the memory guard is off", now_ns) if resync else []
        if not self._fresh and not resync:
            return []
        return list(self._moves(self.report, knobs, now_ns, part, why))

    def _find_arrivals(self, sample: MemorySample, index: WorkloadIndex) -> None:
        requested, first = index.memory_limits, self._requested is _NO_SHARES
        if first or requested is not self._requested:
            used = {each.cgroup: each.used_bytes for each in sample.workloads}
            # One that is new and was not read yet uses nothing.
            unread = math.inf if first else 0
            self._arrived = {
                cgroup: self._arrived.get(cgroup, used.get(cgroup, unread) <= _ARRIVING * wanted)
                for cgroup, wanted in requested.items()
            }
            self._requested = requested

    def _share(
        self, report: MemoryReport, uses: Iterable[MemoryUse], index: WorkloadIndex, now_ns: int
    ) -> None:
        near = min(_NEAR, report.margin_bytes // 2)
        is_near = report.needed_bytes > report.room_bytes - near
        if not self._latch.update(is_near, now_ns):
            self.shares = _NO_SHARES
        elif now_ns - self._shared_ns >= NS_PER_SEC or not self.shares:
            self._shared_ns = now_ns
            wants = {
                each.cgroup: float(each.needed_bytes)
                for each in uses
                if _has_memory(each.cgroup, index)
            }
            least = {cgroup: min(want, _LEAST_SHARE) for cgroup, want in wants.items()}
            self.shares = allocate(max(0.0, report.room_bytes), wants, least)

    def _judge(self, report: MemoryReport) -> None:
        """Say once that the room is too small, that it is not any more, and what has no limit."""
        needed, room = report.needed_bytes, report.room_bytes
        # A quarter of the margin apart, so that a use at the limit is one state.
        line = room - (report.margin_bytes // 4 if self._is_short else 0)
        if (needed > line) is not self._is_short:
            self._is_short = not self._is_short
            text = "has room again" if not self._is_short else "needs more memory than there is"
            self._say(
                f"best-effort work {text}: {format_bytes(needed)} of {format_bytes(max(0, room))}"
            )
        if report.unlimited != self._unlimited:
            self._unlimited = report.unlimited
            number = f"{report.unlimited} best-effort workloads"
            self._say(f"{number} have no cgroup of the memory controller, and no limit of memory")

    def _say(self, text: str) -> None:
        self.verdicts.append(Verdict(subject="memory", text=text))

    def _moves(
        self, report: MemoryReport, knobs: KnobState, now_ns: int, part: float, why: str
    ) -> Iterable[Action]:
        others, capacity = report.others_bytes, report.capacity_bytes
        needs = (
            f"everything but best-effort work needs {format_bytes(others)} of "
            f"{format_bytes(capacity)}"
        )
        spare = report.room_bytes - report.needed_bytes
        if part <= 0:
            self._tops = {}
        for use in self._limited:
            key = (*use.cgroup, Knob.MEMORY_MAX)
            original, current = knobs.original(*key), knobs.value(*key)
            if original is None or current is None:
                continue
            now_bytes = parse_amount(current)
            most = self._requested.get(use.cgroup, math.inf)
            quantum, reason = _QUANTUM * capacity, needs
            if part > 0 and use.cgroup.hierarchy != "v2":
                top = self._tops.setdefault(use.cgroup, use.used_bytes)
                most = squeezed_bytes(use, top, part, capacity)
                if most < use.needed_bytes + spare:
                    quantum, reason = min(quantum, _SQUEEZE_QUANTUM), why
            limit = limit_bytes(use, spare, now_bytes, most)
            if limit >= parse_amount(original):
                action = knobs.restore(*key, reason, now_ns)
            elif current != original and abs(limit - now_bytes) < quantum:
                continue
            else:
                action = knobs.request(*key, format_amount(limit), reason, now_ns)
            if action is not None:
                yield action
        yield from self._own_limits(knobs, now_ns)

    def _own_limits(self, knobs: KnobState, now_ns: int) -> Iterable[Action]:
        """Yield the writes that give workloads of v2 the memory that they requested as a limit.

        Not below what a workload uses: the kernel would kill at once.
        """
        assert self._sample is not None
        used = {each.cgroup: each.used_bytes for each in self._sample.workloads}
        guarded = {each.cgroup for each in self._limited}
        for cgroup, wanted in self._requested.items():
            key = (*cgroup, Knob.MEMORY_MAX)
            original, current = knobs.original(*key), knobs.value(*key)
            if cgroup in guarded or original is None or current is None:
                continue
            if not self._arrived[cgroup]:
                continue
            now = parse_amount(current)
            if wanted >= parse_amount(original):
                action = knobs.restore(*key, "its request is no limit", now_ns)
            elif abs(now - wanted) < MIB or (wanted < now and used.get(cgroup, 0) >= wanted):
                continue
            else:
                action = knobs.request(*key, format_amount(wanted), "its request", now_ns)
            if action is not None:
                yield action


def _restore(knobs: KnobState, reason: str, now_ns: int) -> list[Action]:
    found = (
        knobs.restore(*CgroupId(*cgroup), Knob.MEMORY_MAX, reason, now_ns)
        for cgroup in knobs.touched(Knob.MEMORY_MAX)
    )
    return [each for each in found if each is not None]


def _has_memory(cgroup: CgroupId, index: WorkloadIndex) -> bool:
    """Whether a best-effort workload's own cgroup has the memory controller, as on v2."""
    workload = index.best_effort.get(cgroup)
    at = None if workload is None else workload.memory_at
    return at is not None and at.scope == cgroup.hierarchy
