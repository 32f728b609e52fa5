# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The rung of io.max: how much best-effort work may read from and write to disks, and to which.

Only disks that a service uses are limited, of those services that ask for the squeeze. On another
disk a limit would take something from best-effort work and help nobody.
"""

from collections.abc import Sequence
import math

from controller.core.channels.divided import LEAST_PART, AllocatedRung
from controller.core.channels.ladder import TickContext
from controller.core.knob_values import disks_in, format_disks, parse_disks
from controller.core.knobs.grants import GrantValues
from controller.core.knobs.knob_state import Place
from controller.core.model import CgroupId, Channel, Knob, KnobValue
from controller.core.settings import DiskFacts, KnobLimits
from controller.core.units import MIB, NS_PER_SEC, format_bytes

__all__ = ("IoMaxRung",)

# Bytes per second that every disk can do: a single slow spindle with random requests does less, and
# is then limited by a larger part of what it can do.
_LEAST_DISK = 16 * MIB
# A use that began a moment ago shows so long after it: requests are read once a second, and two
# readings differ.
_WAIT_NS = 3 * NS_PER_SEC


class _UsedDisks:
    """The disks of a squeeze: those that the services use for which it is made.

    A disk stays until the squeeze is let go, however the services use it meanwhile. It is *all*
    where nothing is known: where requests are not counted, of a service without any in this squeeze
    that are counted, and of a squeeze that no service asked for.
    """

    def __init__(self, all_disks: frozenset[str]) -> None:
        self._all = all_disks
        self.disks: frozenset[str] = frozenset()
        # Services without a disk in this squeeze, since when, and those with one.
        self._since_ns: dict[str, int] = {}
        self._found: set[str] = set()

    @property
    def are_all(self) -> bool:
        """Whether no disk is left out."""
        return self.disks == self._all

    def update(self, context: TickContext) -> frozenset[str]:
        """Return the disks to limit in this tick, during a squeeze."""
        if not self.are_all:
            self.disks = self.disks | self._asked(context) & self._all
        return self.disks

    def let_go(self) -> None:
        """Forget the disks: the squeeze is over."""
        self.disks = frozenset()
        self._since_ns.clear()
        self._found.clear()

    def _asked(self, context: TickContext) -> frozenset[str]:
        in_use, now_ns = context.usage.disks, context.now_ns
        if not self.disks and not (in_use.is_measured and context.asking):
            return self._all
        asked: frozenset[str] = frozenset()
        for name in context.asking:
            found = in_use.of(context.workload_index.services[name].cgroups, now_ns)
            if found:
                self._found.add(name)
            elif name not in self._found:
                waited_ns = now_ns - self._since_ns.setdefault(name, now_ns)
                found = self._all if waited_ns >= _WAIT_NS else found
            asked |= found
        return asked


class IoMaxRung(AllocatedRung):
    """Limits what best-effort reads from and writes to disks that suffering services use."""

    def __init__(self, disks: tuple[DiskFacts, ...]) -> None:
        """The most traffic that was seen stands for the capacity of disks that is not known."""
        self._carried = {
            (disk, kind): math.inf if rate is None else rate
            for disk, read, write in disks
            for kind, rate in (("rbps", read), ("wbps", write))
        }
        self._used = _UsedDisks(frozenset(each.device for each in disks))
        # The disks of the values that were compared last.
        self._compared: frozenset[str] = frozenset()
        known = sum(max(each.read_bytes_per_s or 0, each.write_bytes_per_s or 0) for each in disks)
        self._is_known = math.inf not in self._carried.values()
        self._capacity = max(known, 0.0 if self._is_known else _LEAST_DISK)
        writer = GrantValues(Knob.IO_MAX, self._amount_of, self._value_for)
        first = self._capacity if self._is_known else math.inf
        super().__init__(Knob.IO_MAX, first, LEAST_PART * self._capacity, writer)

    def set_part(self, part: float, context: TickContext) -> float | None:
        """Divide the total that *part* leaves; nothing is limited before a disk is known."""
        used = self._used
        has_disks = bool(used.update(context) if part > 0 else used.disks)
        reached = super().set_part(part if has_disks else 0.0, context)
        if part <= 0 and not self._allocator.engaged:
            used.let_go()
        return reached

    def changes(self, context: TickContext) -> Sequence[tuple[Place, KnobValue | None]]:
        """Return the values of this tick; with another disk every workload gets a value."""
        has_more = bool(self._used.disks - self._compared)
        self._compared = self._used.disks
        return super().changes(context._replace(resync=True) if has_more else context)

    def release(self) -> None:
        """Remove all limits at once."""
        super().release()
        self._used.let_go()

    def describe(self) -> str:
        """Return how much best-effort may read and write."""
        total, disks = self._allocator.total, self._used
        if total is None:
            return "disks not limited"
        names = disks_in((each, "") for each in disks.disks)
        which = "disks" if disks.are_all else f"disks {', '.join(names)}"
        return f"{which} {format_bytes(total)}/s"

    def _value_for(self, amount: float, original: KnobValue) -> KnobValue:
        limits = parse_disks(original)
        for key, rate in self._carried.items():
            if key[0] in self._used.disks:
                limits[key] = min(limits.get(key, math.inf), amount, rate)
        return format_disks(limits)

    def _amount_of(self, value: KnobValue) -> float | None:
        limits = parse_disks(value)
        ours = [limits.get(key) for key in self._carried if key[0] in self._used.disks]
        known = [each for each in ours if each is not None]
        # Without the limit of a disk, what the others grant does not matter.
        return max(known) if known and len(known) == len(ours) else None

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
            self._allocator.capacity = self._capacity
        return self._capacity, usage.others

    def _floor(self, limits: KnobLimits) -> float:
        return limits.floor * self._capacity
