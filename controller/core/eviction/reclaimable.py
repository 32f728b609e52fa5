# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Reclaimable capacity: the amount of a node that a scheduler may give to best-effort pods.

It is the capacity of the node, less a reserve, less the peak of what all other work used. The use
is measured; what pods requested does not count. While best-effort is squeezed the amount is at most
what the squeeze leaves, because a pod could not use more. It may also be limited to what a forecast
of the other work leaves.
"""

from typing import NamedTuple

from controller.core.eviction.forecast import Expected
from controller.core.indicators.counters import smoothing
from controller.core.model import CgroupId, QosClass, Snapshot, Workload
from controller.core.pace.limiters import Headroom
from controller.core.units import NS_PER_SEC

__all__ = ("NonBestEffortUse", "ReclaimLimits", "Reclaimable")

# Pods stay for minutes. Bursts of a service that are shorter than this are left to the squeeze.
_SMOOTH_S = 10.0
# Older measurements do not justify an offer.
_STALE_NS = 10 * NS_PER_SEC


class ReclaimLimits(NamedTuple):
    """``reserve_ratio`` is the part of the node that is never offered.

    The peak of the use is taken over ``peak_ns``; the amount rises with the time constant
    ``rise_ns``.
    """

    reserve_ratio: float = 0.1
    peak_ns: int = 600 * NS_PER_SEC
    rise_ns: int = 120 * NS_PER_SEC


class Reclaimable:
    """The reclaimable amount of one resource of the node, in that resource's unit.

    ``amount`` falls at once and rises slowly, from 0 at the start, because the past use of the
    services is not known then. It is never less than what the best-effort pods of the node were
    granted, so that no pod loses what it was promised. The capacity of the node limits that,
    because a pod that names its node itself may request any amount. ``amount`` is 0 while
    ``stale``, that is without recent measurements. ``used`` is what all work but best-effort uses,
    as a mean over ten seconds; ``None`` while ``stale``.
    """

    __slots__ = ("_headroom", "_last_ns", "_limits", "amount", "stale", "used")

    def __init__(self, limits: ReclaimLimits) -> None:
        self._limits = limits
        self._start()

    def _start(self) -> None:
        self.used: float | None = None
        self._last_ns: int | None = None
        rise_s = self._limits.rise_ns / NS_PER_SEC
        self._headroom = Headroom(0.0, self._limits.peak_ns, rise_s)
        self.amount = 0.0
        self.stale = True

    def update(
        self,
        now_ns: int,
        capacity: float,
        others: float | None,
        granted: float,
        squeezed_to: float | None = None,
        expected: Expected | None = None,
    ) -> float:
        """Return ``amount`` at *now_ns*.

        :param capacity: what the node has.
        :param others: what all work but best-effort uses now; ``None``: not measurable.
        :param granted: the sum of the requests of the node's best-effort pods.
        :param squeezed_to: the limit of best-effort in this tick; ``None``: it is not limited.
        :param expected: the use that is expected soon; ``None``: it does not count.
        """
        available = capacity * (1.0 - self._limits.reserve_ratio)
        if others is None:
            if self._last_ns is None or now_ns - self._last_ns > _STALE_NS:
                self._start()
                return self.amount
        else:
            dt_s = 0.0 if self._last_ns is None else max(0, now_ns - self._last_ns) / NS_PER_SEC
            self._last_ns = now_ns
            before = others if self.used is None else self.used
            self.used = before + smoothing(dt_s, _SMOOTH_S) * (others - before)
            self._headroom.update(now_ns, dt_s, available, self.used)
            if squeezed_to is not None:
                self._headroom.lower_to(squeezed_to)
            self.stale = False
        offer = self._headroom.amount
        if expected is not None:
            left = max(0.0, available - expected.use_ratio * capacity)
            offer += expected.weight * (min(offer, left) - offer)
        self.amount = 0.0 if self.stale else max(min(granted, capacity), offer)
        return self.amount


class NonBestEffortUse:
    """CPUs used by all work but best-effort, from the counters of two snapshots."""

    __slots__ = ("_before", "_counters")

    def __init__(self) -> None:
        self._before: Snapshot | None = None
        self._counters: dict[CgroupId, int] = {}

    def update(
        self, snapshot: Snapshot, workloads: tuple[Workload, ...], oldest_ns: int
    ) -> float | None:
        """Return the mean since the last call; ``None`` without two snapshots of fresh data.

        A workload that was added since then is counted from the next call on. Data older than
        *oldest_ns* is not fresh.
        """
        before, self._before = self._before, None
        known, self._counters = self._counters, {}
        if snapshot.age_ns is None or snapshot.age_ns > oldest_ns:
            return None
        others = {w.cgroup for w in workloads if w.qos is not QosClass.BE}
        self._before = snapshot
        self._counters = {
            sample.cgroup: sample.oncpu_ns
            for sample in snapshot.workloads
            if sample.oncpu_ns is not None and sample.cgroup in others
        }
        if before is None or before.system_oncpu_ns is None or snapshot.system_oncpu_ns is None:
            return None
        dt_ns = snapshot.time_ns - before.time_ns
        if dt_ns <= 0:
            return None
        ran_ns = max(0, snapshot.system_oncpu_ns - before.system_oncpu_ns)
        ran_ns += max(0, (snapshot.unknown_oncpu_ns or 0) - (before.unknown_oncpu_ns or 0))
        for cgroup, count in self._counters.items():
            ran_ns += max(0, count - known.get(cgroup, count))
        return ran_ns / dt_ns
