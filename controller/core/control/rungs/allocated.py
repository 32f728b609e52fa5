# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Rungs that share a resource out among best-effort workloads: memory.high and io.max."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
import math

from controller.core.control.grants import Bounds, GrantWriter
from controller.core.control.ladder import Scene
from controller.core.control.rungs.allocator import ShareRung
from controller.core.decision import Action
from controller.core.knob_values import format_amount, format_disks, parse_amount, parse_disks
from controller.core.model import CgroupId, Channel, Knob, KnobValue
from controller.core.settings import KnobLimits
from controller.core.units import format_bytes

__all__ = ("DiskRung", "MemoryRung", "SharedRung")

_MIB = 1 << 20
# Lowering memory.high below the use reclaims in the writer's own time (mm/memcontrol.c,
# memory_high_write), and the writer is the control thread.
_MEMORY_STEP = 64 * _MIB
_NOBODY: Mapping[CgroupId, float] = {}


class SharedRung(ABC):
    """Moves one knob of every best-effort workload, see ``ShareRung``."""

    _channel: Channel

    def __init__(self, knob: Knob, capacity: float, least: float, writer: GrantWriter) -> None:
        self.knob = knob
        self._rates: object = None
        self._last_use: dict[CgroupId, float] = {}
        self.part = 0.0
        self._share = ShareRung(capacity, least)
        self._writer = writer
        self._blocked: frozenset[CgroupId] = frozenset()
        self._grants: Mapping[CgroupId, float] = {}

    def usable(self, scene: Scene) -> bool:
        """Return whether there is a workload whose knob can be moved now."""
        if not scene.book.movable(self.knob, scene.now_ns):
            return False
        present = scene.roster.best_effort
        self._blocked = scene.book.blocked(present, self.knob, scene.now_ns)
        return len(self._blocked) < len(present)

    def rescale(self, part: float, limits: KnobLimits, scene: Scene) -> float:
        """Return *part*: the scale of this rung never changes."""
        return part

    def settle(self, part: float, limits: KnobLimits, scene: Scene) -> float | None:
        """Share out what *part* leaves."""
        self.part = part
        available, need = self._feed_forward(scene)
        share = self._share
        share.ceiling.update(scene.now_ns, scene.dt_s, available, need)
        floor = self._floor(limits)
        self._grants = share.update(
            part,
            lambda: self._used(scene),
            len(scene.roster.best_effort),
            _NOBODY,
            self._blocked,
            floor,
            scene.now_ns,
        )
        return part if share.engaged else None

    def actions(self, scene: Scene, reason: str) -> list[Action]:
        """Return what has to be written."""
        floor, grants = self._share.floor_each, self._limit(self._grants, scene)
        return self._writer.actions(
            grants, floor, scene.roster, scene.book, reason, scene.anew, scene.now_ns
        )

    def release(self) -> None:
        """Go free at once."""
        self.part = 0.0
        self._share.release()
        self._grants = self._share.grants

    def _used(self, scene: Scene) -> dict[CgroupId, float]:
        """Return what ``_use`` says, which is news once a second."""
        rates = scene.usage.of(self._channel).rates
        if rates is not self._rates or scene.anew:
            self._rates = rates
            self._last_use = self._use(scene)
        return self._last_use

    @abstractmethod
    def describe(self) -> str:
        """Return the setting in a few words."""

    @abstractmethod
    def _use(self, scene: Scene) -> dict[CgroupId, float]:
        """Return what every best-effort workload uses."""

    @abstractmethod
    def _feed_forward(self, scene: Scene) -> tuple[float, float]:
        """Return what there is for services and best-effort, and what the services use of it."""

    def _floor(self, limits: KnobLimits) -> float:
        return limits.floor

    def _limit(self, grants: Mapping[CgroupId, float], scene: Scene) -> Mapping[CgroupId, float]:
        """Return what of *grants* may be written now."""
        return grants


class MemoryRung(SharedRung):
    """Lowers memory.high: above it the kernel reclaims and slows the workload down."""

    _channel = Channel.MEMORY

    def __init__(self, memory_bytes: int) -> None:
        def value_for(amount: float, original: KnobValue) -> KnobValue:
            return format_amount(amount)

        writer = GrantWriter(Knob.MEMORY_HIGH, parse_amount, value_for, largest=_MEMORY_STEP / 2)
        super().__init__(Knob.MEMORY_HIGH, float(memory_bytes), float(_MIB), writer)
        self._memory_bytes = memory_bytes
        # Grants that every write may go to at once.
        self._reached: Mapping[CgroupId, float] | None = None
        self._bounds = Bounds()

    def usable(self, scene: Scene) -> bool:
        """Return whether memory can be limited, and whose it is is known."""
        return scene.usage.of(Channel.MEMORY).wanted is not None and super().usable(scene)

    def describe(self) -> str:
        """Return how much memory best-effort may keep."""
        total = self._share.total
        return "memory free" if total is None else f"memory {format_bytes(total)}"

    def actions(self, scene: Scene, reason: str) -> list[Action]:
        """Return what has to be written, also for the workloads' own limits."""
        return self._bounds.explain(super().actions(scene, reason))

    def _use(self, scene: Scene) -> dict[CgroupId, float]:
        rates = scene.usage.of(Channel.MEMORY).rates
        return {cgroup: rates[cgroup] for cgroup in scene.roster.best_effort if cgroup in rates}

    def _feed_forward(self, scene: Scene) -> tuple[float, float]:
        return float(self._memory_bytes), scene.usage.of(Channel.MEMORY).others

    def _limit(self, grants: Mapping[CgroupId, float], scene: Scene) -> Mapping[CgroupId, float]:
        grants = self._bounds.apply(grants, scene.roster.memory_limits)
        if grants is self._reached:
            return grants
        use = self._used(scene)
        limited = {}
        for cgroup, amount in grants.items():
            value = scene.book.value(*cgroup, self.knob)
            now = math.inf if value is None else parse_amount(value)
            start = min(now, use.get(cgroup, now))
            if start < math.inf:  # before its use is known, its limit has to wait
                limited[cgroup] = max(amount, start - _MEMORY_STEP)
        if limited == grants:
            self._reached = grants
            return grants
        return limited


class DiskRung(SharedRung):
    """Limits what best-effort reads from and writes to the disks, io.max."""

    _channel = Channel.IO

    def __init__(self, disks: tuple[tuple[str, float, float], ...]) -> None:
        """*disks* are (MAJOR:MINOR, bytes per second read, written)."""
        carried = {
            (disk, kind): rate
            for disk, read, write in disks
            for kind, rate in (("rbps", read), ("wbps", write))
        }

        def value_for(amount: float, original: KnobValue) -> KnobValue:
            limits = parse_disks(original)
            for key, rate in carried.items():
                limits[key] = min(limits.get(key, math.inf), amount, rate)
            return format_disks(limits)

        def amount_of(value: KnobValue) -> float | None:
            ours = [limit for key, limit in parse_disks(value).items() if key in carried]
            return max(ours, default=None)

        self._capacity = sum(max(read, write) for _, read, write in disks)
        writer = GrantWriter(Knob.IO_MAX, amount_of, value_for)
        super().__init__(Knob.IO_MAX, self._capacity, self._capacity / 1000, writer)

    def describe(self) -> str:
        """Return what best-effort may read and write."""
        total = self._share.total
        return "disks free" if total is None else f"disks {format_bytes(total)}/s"

    def _use(self, scene: Scene) -> dict[CgroupId, float]:
        present = scene.roster.best_effort
        rates = scene.usage.of(Channel.IO).rates
        if not rates:
            # Not measured: as if everybody used the same.
            return dict.fromkeys(present, self._capacity / max(1, len(present)))
        return {cgroup: rates[cgroup] for cgroup in present if cgroup in rates}

    def _feed_forward(self, scene: Scene) -> tuple[float, float]:
        return self._capacity, scene.usage.of(Channel.IO).others

    def _floor(self, limits: KnobLimits) -> float:
        return limits.floor * self._capacity
