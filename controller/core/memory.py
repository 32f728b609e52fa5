# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The memory guard: limits best-effort work to the room, before it needs more.

The room is the memory that best-effort work may need: capacity, less a margin, less the peak of
what everything else needs. A process that the kernel kills for want of memory is the largest one,
not the one that grew. Where a service uses more than it requested, that is the service, also beside
best-effort processes with an oom_score_adj of 1000. A limit of best-effort work is what saves it:
memory.low and memory.min do not (tried on 6.12, with services of 90 and 180 MiB).

The limit is in force all the time, because a job may take gigabytes within a tick. It is moved with
the room: raised at once, lowered no further than ``limit_bytes`` allows. On v2 a workload that
requested memory has its request as a limit of its own from its arrival on, so that the kernel ends
nothing else for it. One that runs already may have grown, and a new limit could end it later.
"""

from collections import deque
from collections.abc import Iterable, Mapping
import math

from controller.core.decision import Action, MemoryReport, Verdict
from controller.core.harm.cut import allocate
from controller.core.knob_values import format_amount, parse_amount
from controller.core.knobs.knob_state import KnobState
from controller.core.limiters import HoldOffLatch
from controller.core.model import CgroupId, Knob, MemorySample, MemoryUse, Mode
from controller.core.settings import HostFacts, MemoryGuard, Settings
from controller.core.units import MIB, NS_PER_SEC, format_bytes
from controller.core.workload_index import WorkloadIndex

__all__ = (
    "SOON_BYTES",
    "MemoryGuardian",
    "RoomMeter",
    "capacity_bytes",
    "limit_bytes",
    "margin_bytes",
    "squeezed_bytes",
)

# Less than this may be gone within a second: work that starts takes some gigabytes.
SOON_BYTES = 4 << 30
# kubelet's default hard eviction, which starts at so much available memory
# (pkg/kubelet/eviction/defaults_linux.go). It is looked at every 10 s only.
_KUBELET_EVICTS = 100 * MIB
# What work may grow by between two readings, in a tick. So far above its use stays a new limit of
# v2, which kills at once below it. So near to the room shares are set, or at half of the margin if
# that is less. A squeeze of v1 leaves so much at least, so only work that grows faster is ended.
# And one write of v1 reclaims at most so much page cache in the time of the control thread (180 MiB
# took 0.6 ms on 6.18).
_GROWTH = 64 * MIB
# v1: the kernel refuses a limit below what it cannot reclaim, without another effect. So far above
# it a limit is tried again in the next tick, and a squeeze moves it in such steps.
_ABOVE_NEED = _GROWTH // 8


def capacity_bytes(guard: MemoryGuard, host: HostFacts) -> int | None:
    """Return the memory that all work shares; ``None``: not known."""
    return host.memory_bytes if guard.capacity_bytes is None else guard.capacity_bytes


def margin_bytes(guard: MemoryGuard, host: HostFacts) -> int:
    """Return the memory that stays free of best-effort work, beside what others need.

    It is 3 % at least. On a whole host it is twice the high watermarks or more, so that the kernel
    does not reclaim, and 1 % more than where kubelet begins to evict.
    """
    if guard.margin_bytes is not None:
        return guard.margin_bytes
    capacity = capacity_bytes(guard, host) or 0
    least = round(0.03 * capacity)
    if guard.capacity_bytes is not None:
        return least
    return max(least, 2 * host.high_watermark_bytes, _KUBELET_EVICTS + round(0.01 * capacity))


class RoomMeter:
    """The room now; ``others_bytes`` is the peak of what everything else needed within 60 s."""

    def __init__(self) -> None:
        # Times and amounts, both falling from the last to the first by time and by amount.
        self._peaks: deque[tuple[int, int]] = deque()
        self.others_bytes = 0

    def update(
        self, now_ns: int, others_bytes: int, capacity: int, margin: int, moved_bytes: int = 0
    ) -> int:
        """Return the room in bytes, below 0 if the others need more than they may.

        *moved_bytes* counted as theirs so far, and is that of best-effort work from now on.
        """
        if moved_bytes:
            self._peaks = deque((at, max(0, peak - moved_bytes)) for at, peak in self._peaks)
        peaks = self._peaks
        while peaks and peaks[-1][1] <= others_bytes:
            peaks.pop()
        peaks.append((now_ns, others_bytes))
        while peaks[0][0] <= now_ns - 60 * NS_PER_SEC:
            peaks.popleft()
        self.others_bytes = peaks[0][1]
        return capacity - margin - self.others_bytes


def squeezed_bytes(use: MemoryUse, top_bytes: int, part: float, capacity: int) -> float:
    """Return what a cgroup of v1 may hold at *part* (0 to 1) of a squeeze for a service.

    *top_bytes* is what it used when the squeeze began. Equal steps of *part* are equal factors,
    down to what it needs and an eighth of *capacity* to grow, between 64 MiB and 1 GiB. So nothing
    but page cache is taken.
    """
    spared = min(1 << 30, max(_GROWTH, capacity // 8))
    bottom = use.needed_bytes + spared
    return float(bottom * (max(top_bytes, bottom) / bottom) ** (1.0 - part))


def limit_bytes(
    use: MemoryUse, spare_bytes: int, now_bytes: float, most_bytes: float = math.inf
) -> float:
    """Return the limit of a cgroup whose limit is *now_bytes*, infinity for none.

    *spare_bytes* is what all limited cgroups leave of the room; below 0: they need more than the
    room. Each may take all of it, because a limit that is not needed would kill, but no more than
    *most_bytes*. A limit is raised only to that, and lowered to that or as far as the use allows;
    in whole MiB.
    """
    allowed = min(use.needed_bytes + spare_bytes, most_bytes) // MIB * MIB
    if allowed >= now_bytes:
        return allowed
    if use.cgroup.hierarchy == "v2":
        least = use.used_bytes + _GROWTH
    else:
        least = max(use.needed_bytes + _ABOVE_NEED, use.used_bytes - _GROWTH)
    return min(now_bytes, max(allowed, -(-least // MIB) * MIB))


class MemoryGuardian:
    """Moves memory.max of the cgroups of ``WorkloadIndex.memory_targets``, in enforce mode only.

    Valid after ``update``: ``report`` describes the last look; ``None``: the guard is off, or
    nothing was measured yet. ``verdicts`` say what changed in this tick. ``shares`` is what each
    best-effort workload may need while the room is short, for memory.high: below its limit the
    kernel slows a workload down that grows, and ends none. They are in proportion to the needs.
    v1 has no memory.high: there a squeeze for a service lowers the limits, see ``squeezed_bytes``.
    """

    def __init__(self) -> None:
        self._meter = RoomMeter()
        self._sample: MemorySample | None = None
        self._fresh = False
        self._limited: tuple[MemoryUse, ...] = ()
        # The cgroups whose memory was not that of the others in the last sample, and that memory.
        self._known: frozenset[CgroupId] = frozenset()
        self._others_bytes = 0
        # What workloads requested; ``None``: not looked at yet.
        self._requested: Mapping[CgroupId, float] | None = None
        self._places: Mapping[CgroupId, CgroupId] = {}
        # Of the workloads with a request: whether they were seen to arrive.
        self._arrived: dict[CgroupId, bool] = {}
        self._shortage = HoldOffLatch()
        self._latch = HoldOffLatch()
        self._shared_ns = 0
        self._unlimited = 0
        # What each cgroup of v1 used when the present squeeze began.
        self._tops: dict[CgroupId, int] = {}
        self.report: MemoryReport | None = None
        self.shares: Mapping[CgroupId, float] = {}
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
            self.report, self._sample, self.shares = None, None, {}
            return
        self._fresh = sample is not None and sample is not self._sample
        if sample is None or not self._fresh:
            return
        self._sample = sample
        margin = margin_bytes(guard, settings.host)
        self._limited = tuple(
            each for each in sample.limited if each.cgroup in index.memory_targets
        )
        # The guard leaves a cgroup above a paused workload alone.
        left = (each for each in sample.limited if each.cgroup not in index.memory_targets)
        others = sample.others_bytes + sum(each.needed_bytes for each in left)
        room = self._meter.update(now_ns, others, capacity, margin, self._moved_bytes(others))
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
        self._judge(self.report, now_ns)
        self._share(self.report, sample.workloads, index, now_ns)

    def actions(
        self, knobs: KnobState, resync: bool, now_ns: int, part: float = 0.0, why: str = ""
    ) -> list[Action]:
        """Return the writes of memory.max in this tick.

        *part* of the page cache is to go, on v1 only, *why*: the service that suffers.
        """
        if self.report is None and resync:
            gone = [(each, None) for each in knobs.touched(Knob.MEMORY_MAX)]
            return knobs.limit(Knob.MEMORY_MAX, gone, "the memory guard is off", now_ns)
        if self.report is not None and (self._fresh or resync):
            return [*filter(None, self._moves(self.report, knobs, now_ns, part, why))]
        return []

    def _moved_bytes(self, others: int) -> int:
        """Return what best-effort work needs that counted as memory of the others so far.

        Until the pods are known, all of their memory is that of the others. New work was none of
        theirs: then *others* need no less than before.
        """
        before, self._known = self._known, frozenset(each.cgroup for each in self._limited)
        drop, self._others_bytes = self._others_bytes - others, others
        new = sum(each.needed_bytes for each in self._limited if each.cgroup not in before)
        return max(0, min(new, drop))

    def _find_arrivals(self, sample: MemorySample, index: WorkloadIndex) -> None:
        requested, self._places = index.memory_limits, index.memory_places
        if requested is not self._requested:
            used = {each.cgroup: each.used_bytes for each in sample.workloads}
            limited = {each.cgroup: each.used_bytes for each in self._limited}
            used |= {c: limited[place] for c, place in self._places.items() if place in limited}
            # One that is new and was not read yet uses nothing.
            unread = math.inf if self._requested is None else 0
            # One that uses no more than a quarter of its request has just arrived.
            self._arrived = {
                cgroup: self._arrived.get(cgroup, used.get(cgroup, unread) <= wanted / 4)
                for cgroup, wanted in requested.items()
            }
            self._requested = requested

    def _share(
        self, report: MemoryReport, uses: Iterable[MemoryUse], index: WorkloadIndex, now_ns: int
    ) -> None:
        near = min(_GROWTH, report.margin_bytes // 2)
        is_near = report.needed_bytes > report.room_bytes - near
        # They are renewed once a second, and go when they were not needed for a while.
        if not self._latch.update(is_near, now_ns):
            self.shares = {}
        elif now_ns - self._shared_ns >= NS_PER_SEC or not self.shares:
            self._shared_ns = now_ns
            wants = {
                each.cgroup: float(each.needed_bytes)
                for each in uses
                if _has_memory(each.cgroup, index)
            }
            least = {cgroup: min(want, _GROWTH / 4) for cgroup, want in wants.items()}
            self.shares = allocate(max(0.0, report.room_bytes), wants, least)

    def _judge(self, report: MemoryReport, now_ns: int) -> None:
        """Say once that the room is too small, that it is not any more, and what has no limit.

        Work that ends at its limit and starts again needs too much every few seconds: one shortage.
        """
        needed, room, was_short = report.needed_bytes, report.room_bytes, self._shortage.on
        if self._shortage.update(needed > room, now_ns) is not was_short:
            text = "has room again" if was_short else "needs more memory than there is"
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
    ) -> Iterable[Action | None]:
        assert self._sample is not None
        others, capacity = report.others_bytes, report.capacity_bytes
        needs = (
            f"everything but best-effort work needs {format_bytes(others)} of "
            f"{format_bytes(capacity)}"
        )
        spare = report.room_bytes - report.needed_bytes
        requested, places = self._requested or {}, self._places
        own = {
            places[cgroup]: wanted for cgroup, wanted in requested.items() if self._arrived[cgroup]
        }
        if part <= 0:
            self._tops = {}
        for use in self._limited:
            now_bytes = _now_bytes(knobs, use.cgroup)
            if now_bytes is None:
                continue
            most = own.get(use.cgroup, math.inf)
            quantum, reason = capacity / 256, needs  # a smaller move is noise
            if part > 0 and use.cgroup.hierarchy != "v2":
                top = self._tops.setdefault(use.cgroup, use.used_bytes)
                most = squeezed_bytes(use, top, part, capacity)
                if most < use.needed_bytes + spare:
                    quantum, reason = min(quantum, _ABOVE_NEED), why
            limit = limit_bytes(use, spare, now_bytes, most)
            yield _move(knobs, use.cgroup, limit, quantum, reason, now_ns)
        # Workloads get the memory that they requested as a limit. Not below what one uses: v2 would
        # kill at once, and v1 reclaim in the time of the control thread.
        used = {each.cgroup: each.used_bytes for each in self._sample.workloads}
        guarded = self.guarded
        for cgroup, wanted in requested.items():
            place = places[cgroup]
            now_bytes = _now_bytes(knobs, place)
            if now_bytes is None or place in guarded or not self._arrived[cgroup]:
                continue
            if wanted >= now_bytes or used.get(cgroup, 0) < wanted:
                yield _move(knobs, place, wanted, MIB, "its request", now_ns)


def _now_bytes(knobs: KnobState, cgroup: CgroupId) -> float | None:
    """Return the limit of a cgroup; ``None``: there is none, or it cannot be moved."""
    key = (*cgroup, Knob.MEMORY_MAX)
    current = None if knobs.original(*key) is None else knobs.value(*key)
    return None if current is None else parse_amount(current)


def _move(
    knobs: KnobState, cgroup: CgroupId, limit: float, quantum: float, reason: str, now_ns: int
) -> Action | None:
    """Return the write of *limit*, if it is *quantum* away; one above the original restores."""
    key = (*cgroup, Knob.MEMORY_MAX)
    original, current = knobs.original(*key), knobs.value(*key)
    assert original is not None and current is not None
    if limit >= parse_amount(original):
        return knobs.restore(*key, reason, now_ns)
    if current != original and abs(limit - parse_amount(current)) < quantum:
        return None
    return knobs.request(*key, format_amount(limit), reason, now_ns)


def _has_memory(cgroup: CgroupId, index: WorkloadIndex) -> bool:
    """Whether a best-effort workload's own cgroup has the memory controller, as on v2."""
    workload = index.best_effort.get(cgroup)
    at = None if workload is None else workload.memory_at
    return at is not None and at.scope == cgroup.hierarchy
