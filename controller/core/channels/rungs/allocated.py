# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Rungs that divide a resource among best-effort workloads: memory.high and io.max."""

from abc import abstractmethod
from collections.abc import Mapping
import math

from controller.core.channels.ladder import Rung, TickContext
from controller.core.channels.rungs.allocator import ProportionalAllocator, Users
from controller.core.decision import Action
from controller.core.knob_values import format_amount, format_disks, parse_amount, parse_disks
from controller.core.knobs.grants import GrantActions, RequestedLimits
from controller.core.model import CgroupId, Channel, Knob, KnobValue
from controller.core.settings import DiskFacts, KnobLimits
from controller.core.units import MIB, format_bytes

__all__ = ("AllocatedRung", "IoMaxRung", "MemoryHighRung")

# Lowering memory.high below the use reclaims in the writer's own time (mm/memcontrol.c,
# memory_high_write), and the writer is the control thread.
_MEMORY_STEP = 64 * MIB
# Bytes per second that every disk can do: a single slow spindle with random requests does less, and
# is then limited by a larger part of what it can do.
_LEAST_DISK = 16 * MIB


class AllocatedRung(Rung):
    """Moves one knob of every best-effort workload, see ``ProportionalAllocator``.

    *capacity* is what the machine has of the resource, *least* the smallest amount that can be
    granted, both in the resource's unit.
    """

    _channel: Channel

    def __init__(self, knob: Knob, capacity: float, least: float, writer: GrantActions) -> None:
        self.knob = knob
        self._rates: object = None
        self._last_use: dict[CgroupId, float] = {}
        self._allocator = ProportionalAllocator(capacity, least)
        self._writer = writer
        self._blocked: frozenset[CgroupId] = frozenset()
        self._grants: Mapping[CgroupId, float] = {}

    def usable(self, context: TickContext) -> bool:
        """Return whether there is a workload whose knob can be moved now."""
        if not context.knobs.movable(self.knob, context.now_ns):
            return False
        present = context.workload_index.best_effort
        self._blocked = context.knobs.blocked(present, self.knob, context.now_ns)
        return len(self._blocked) < len(present)

    def set_part(self, part: float, limits: KnobLimits, context: TickContext) -> float | None:
        """Divide the total that *part* leaves; return *part*, ``None`` if nothing is limited."""
        self.part = part
        available, need = self._feed_forward(context)
        allocator = self._allocator
        allocator.ceiling.update(context.now_ns, context.elapsed_s, available, need)
        number = len(context.workload_index.best_effort)
        users = Users(number, self._floor(limits), self._blocked)
        self._grants = allocator.update(part, users, lambda: self._used(context), context.now_ns)
        return part if allocator.engaged else None

    def actions(self, context: TickContext, reason: str) -> list[Action]:
        """Return the writes of this tick."""
        floor, grants = self._allocator.floor_each, self._limit(self._grants, context)
        return self._writer.actions(
            grants,
            floor,
            context.workload_index.best_effort,
            context.knobs,
            reason,
            context.resync,
            context.now_ns,
        )

    def release(self) -> None:
        """Remove all limits at once."""
        super().release()
        self._allocator.release()
        self._grants = self._allocator.grants

    def _used(self, context: TickContext) -> dict[CgroupId, float]:
        """Return the result of ``_use``, computed anew when the rates change (once a second)."""
        rates = context.usage.of(self._channel).rates
        if rates is not self._rates or context.resync:
            self._rates = rates
            self._last_use = self._use(context)
        return self._last_use

    @abstractmethod
    def _use(self, context: TickContext) -> dict[CgroupId, float]:
        """Return the use of every best-effort workload."""

    @abstractmethod
    def _feed_forward(self, context: TickContext) -> tuple[float, float]:
        """Return what services and best-effort may use together, and what the services use."""

    def _floor(self, limits: KnobLimits) -> float:
        return limits.floor

    def _limit(
        self, grants: Mapping[CgroupId, float], context: TickContext
    ) -> Mapping[CgroupId, float]:
        """Return the amounts that may be written in this tick on the way to *grants*."""
        return grants


class MemoryHighRung(AllocatedRung):
    """Lowers memory.high: above it the kernel reclaims and slows the workload down."""

    _channel = Channel.MEMORY

    def __init__(self, memory_bytes: int) -> None:
        def value_for(amount: float, original: KnobValue) -> KnobValue:
            return format_amount(amount)

        writer = GrantActions(Knob.MEMORY_HIGH, parse_amount, value_for, largest=_MEMORY_STEP / 2)
        super().__init__(Knob.MEMORY_HIGH, float(memory_bytes), float(MIB), writer)
        self._memory_bytes = memory_bytes
        # The last grants that no longer have to be approached in steps.
        self._reached: Mapping[CgroupId, float] | None = None
        self._bounds = RequestedLimits()
        self._shares = RequestedLimits("its share of the memory that everything else leaves")

    def usable(self, context: TickContext) -> bool:
        """Return whether memory.high can be moved, and the use of memory is measured."""
        return context.usage.of(Channel.MEMORY).wanted is not None and super().usable(context)

    def describe(self) -> str:
        """Return how much memory best-effort may keep."""
        total = self._allocator.total
        return "memory not limited" if total is None else f"memory {format_bytes(total)}"

    def actions(self, context: TickContext, reason: str) -> list[Action]:
        """Return the writes of this tick, also those for the workloads' own limits."""
        return self._shares.explain(self._bounds.explain(super().actions(context, reason)))

    def _use(self, context: TickContext) -> dict[CgroupId, float]:
        rates = context.usage.of(Channel.MEMORY).rates
        return {
            cgroup: rates[cgroup]
            for cgroup in context.workload_index.best_effort
            if cgroup in rates
        }

    def _feed_forward(self, context: TickContext) -> tuple[float, float]:
        return float(self._memory_bytes), context.usage.of(Channel.MEMORY).others

    def _limit(
        self, grants: Mapping[CgroupId, float], context: TickContext
    ) -> Mapping[CgroupId, float]:
        grants = self._bounds.apply(grants, context.workload_index.memory_limits)
        grants = self._shares.apply(grants, context.memory_shares)
        if grants is self._reached:
            return grants
        use = self._used(context)
        limited = {}
        for cgroup, amount in grants.items():
            value = context.knobs.value(*cgroup, self.knob)
            now = math.inf if value is None else parse_amount(value)
            start = min(now, use.get(cgroup, now))
            if start < math.inf:  # without a limit and without a known use there is no first step
                limited[cgroup] = max(amount, start - _MEMORY_STEP)
        if limited == grants:
            self._reached = grants
            return grants
        return limited


class IoMaxRung(AllocatedRung):
    """Limits what best-effort reads from and writes to the disks, io.max."""

    _channel = Channel.IO

    def __init__(self, disks: tuple[DiskFacts, ...]) -> None:
        """The most traffic that was seen stands for the capacity of disks that is not known."""
        carried = {
            (disk, kind): math.inf if rate is None else rate
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

        known = sum(max(each.read_bytes_per_s or 0, each.write_bytes_per_s or 0) for each in disks)
        self._is_known = math.inf not in carried.values()
        self._capacity = max(known, 0.0 if self._is_known else _LEAST_DISK)
        writer = GrantActions(Knob.IO_MAX, amount_of, value_for)
        first = self._capacity if self._is_known else math.inf
        super().__init__(Knob.IO_MAX, first, self._capacity / 1000, writer)

    def describe(self) -> str:
        """Return how much best-effort may read and write."""
        total = self._allocator.total
        return "disks not limited" if total is None else f"disks {format_bytes(total)}/s"

    def _use(self, context: TickContext) -> dict[CgroupId, float]:
        present = context.workload_index.best_effort
        rates = context.usage.of(Channel.IO).rates
        if not rates:
            # Not measured: equal parts of the capacity are assumed.
            return dict.fromkeys(present, self._capacity / max(1, len(present)))
        return {cgroup: rates[cgroup] for cgroup in present if cgroup in rates}

    def _feed_forward(self, context: TickContext) -> tuple[float, float]:
        usage = context.usage.of(Channel.IO)
        if not self._is_known:
            self._capacity = max(self._capacity, usage.others + sum(usage.rates.values()))
            self._allocator.resize(self._capacity)
        return self._capacity, usage.others

    def _floor(self, limits: KnobLimits) -> float:
        return limits.floor * self._capacity
