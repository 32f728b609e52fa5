# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The memory guard: limits best-effort work to the room, before it needs more.

The limit is in force all the time, because a job may take gigabytes within a tick. It is moved with
the room: raised at once, lowered no further than ``limit_bytes`` allows.
"""

from collections.abc import Iterable

from controller.core.decision import Action, MemoryReport, Verdict
from controller.core.knob_values import format_amount, parse_amount
from controller.core.knobs.knob_state import KnobState
from controller.core.memory.room import RoomMeter, capacity_bytes, limit_bytes, margin_bytes
from controller.core.model import CgroupId, Knob, MemorySample, MemoryUse, Mode
from controller.core.settings import Settings
from controller.core.units import format_bytes
from controller.core.workload_index import WorkloadIndex

__all__ = ("MemoryGuardian",)

# Limits are moved by this part of the capacity at least: less is noise.
_QUANTUM = 1 / 256
# Work that starts takes some gigabytes a second. With more than this available, 12 % of the memory,
# the guard need not look in each tick.
_NEAR_MARGINS = 4


class MemoryGuardian:
    """Moves memory.max of the cgroups of ``WorkloadIndex.memory_targets``, in enforce mode only.

    ``report`` describes the last look; ``None``: the guard is off, or nothing was measured yet.
    ``verdicts`` say what changed in this tick.
    """

    __slots__ = ("_is_short", "_meter", "_room", "_sample", "_unlimited", "report", "verdicts")

    def __init__(self) -> None:
        self._meter = RoomMeter()
        self._sample: MemorySample | None = None
        self._room = 0
        self._is_short = False
        self._unlimited = 0
        self.report: MemoryReport | None = None
        self.verdicts: list[Verdict] = []

    @property
    def is_near(self) -> bool:
        """Whether so little memory is available that it might be used up before the next look."""
        report = self.report
        return report is not None and report.available_bytes < _NEAR_MARGINS * report.margin_bytes

    def actions(
        self,
        sample: MemorySample | None,
        settings: Settings,
        index: WorkloadIndex,
        knobs: KnobState,
        resync: bool,
        now_ns: int,
    ) -> list[Action]:
        """Return the writes of this tick."""
        self.verdicts = []
        guard = settings.memory
        capacity = None if guard is None else capacity_bytes(guard, settings.host)
        if guard is None or capacity is None or settings.mode is not Mode.ENFORCE:
            self.report, self._sample = None, None
            return _restore(knobs, "the memory guard is off", now_ns) if resync else []
        if sample is None or (sample is self._sample and not resync):
            return []
        margin = margin_bytes(guard, settings.host)
        if sample is not self._sample:
            self._sample = sample
            self._room = self._meter.update(now_ns, sample.others_bytes, capacity, margin)
        limited = [use for use in sample.limited if use.cgroup in index.memory_targets]
        needed = sum(use.needed_bytes for use in limited)
        self.report = MemoryReport(
            capacity_bytes=capacity,
            margin_bytes=margin,
            others_bytes=self._meter.others_bytes,
            room_bytes=self._room,
            needed_bytes=needed,
            available_bytes=sample.available_bytes,
            limited=len(limited),
            unlimited=sum(each.memory_at is None for each in index.best_effort.values()),
        )
        self._judge(self.report)
        return list(self._moves(limited, self._room - needed, capacity, knobs, now_ns))

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
        self,
        limited: Iterable[MemoryUse],
        spare: int,
        capacity: int,
        knobs: KnobState,
        now_ns: int,
    ) -> Iterable[Action]:
        reason = (
            f"everything but best-effort work needs {format_bytes(self._meter.others_bytes)} of "
            f"{format_bytes(capacity)}"
        )
        for use in limited:
            key = (*use.cgroup, Knob.MEMORY_MAX)
            original, current = knobs.original(*key), knobs.value(*key)
            if original is None or current is None:
                continue
            now_bytes = parse_amount(current)
            limit = limit_bytes(use, spare, now_bytes)
            if limit >= parse_amount(original):
                action = knobs.restore(*key, reason, now_ns)
            elif current != original and abs(limit - now_bytes) < _QUANTUM * capacity:
                continue
            else:
                action = knobs.request(*key, format_amount(limit), reason, now_ns)
            if action is not None:
                yield action


def _restore(knobs: KnobState, reason: str, now_ns: int) -> list[Action]:
    found = (
        knobs.restore(*CgroupId(*cgroup), Knob.MEMORY_MAX, reason, now_ns)
        for cgroup in knobs.touched(Knob.MEMORY_MAX)
    )
    return [each for each in found if each is not None]
