# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PURE: how much of a node a scheduler may give to best-effort work.

What the node has, less a reserve, less a peak of what everybody else used: the measured use, not
what pods asked for. While best-effort is squeezed it is no more than the squeeze leaves, because
the rest of it would only be promised.
"""

from typing import NamedTuple

from controller.core.control.limiters import Headroom
from controller.core.indicators.counters import smoothing
from controller.core.model import CgroupId, QosClass, Snapshot, Workload
from controller.core.units import NS_PER_SEC

__all__ = ("NonBestEffortUse", "ReclaimLimits", "Reclaimable")

# Shorter bursts of a service are the squeeze's business: pods stay for minutes.
_SMOOTH_S = 10.0
# Without news for this long, what was known is no ground for a promise.
_STALE_NS = 10 * NS_PER_SEC


class ReclaimLimits(NamedTuple):
    """``reserve_ratio`` of the node is never given away; the peak is over ``peak_ns``.

    What is found to be free is given with the time constant ``rise_ns``.
    """

    reserve_ratio: float = 0.1
    peak_ns: int = 600 * NS_PER_SEC
    rise_ns: int = 120 * NS_PER_SEC


class Reclaimable:
    """Follows one resource of the node, in that resource's unit.

    ``amount`` falls at once, also to less than the last peak left, and rises slowly, from nothing
    at the start: the past of the services is not known then. It is never less than what
    best-effort pods were granted here, so that nobody is thrown out of what he was promised, as
    far as the node has that much: who names his node himself may ask for any amount. It is 0 while
    it is ``stale``.
    """

    __slots__ = ("_last_ns", "_limits", "_room", "_used", "amount", "stale")

    def __init__(self, limits: ReclaimLimits) -> None:
        self._limits = limits
        self._start()

    def _start(self) -> None:
        self._used: float | None = None
        self._last_ns: int | None = None
        rise_s = self._limits.rise_ns / NS_PER_SEC
        self._room = Headroom(0.0, self._limits.peak_ns, rise_s)
        self.amount = 0.0
        self.stale = True

    def update(
        self,
        now_ns: int,
        capacity: float,
        others: float | None,
        granted: float,
        squeezed_to: float | None = None,
    ) -> float:
        """Return what best-effort may have at *now_ns*.

        :param others: what is used now by all who are not best-effort; ``None``: not measurable.
        :param granted: what the best-effort pods of the node asked for in all.
        :param squeezed_to: what best-effort is limited to now; ``None``: to nothing.
        """
        if others is None:
            if self._last_ns is None or now_ns - self._last_ns > _STALE_NS:
                self._start()
                return self.amount
        else:
            dt_s = 0.0 if self._last_ns is None else max(0, now_ns - self._last_ns) / NS_PER_SEC
            self._last_ns = now_ns
            before = others if self._used is None else self._used
            self._used = before + smoothing(dt_s, _SMOOTH_S) * (others - before)
            available = capacity * (1.0 - self._limits.reserve_ratio)
            self._room.update(now_ns, dt_s, available, self._used)
            if squeezed_to is not None:
                self._room.lower_to(squeezed_to)
            self.stale = False
        self.amount = 0.0 if self.stale else max(min(granted, capacity), self._room.amount)
        return self.amount


class NonBestEffortUse:
    """CPUs that everybody but best-effort uses, from the counters of two snapshots."""

    __slots__ = ("_before", "_counters")

    def __init__(self) -> None:
        self._before: Snapshot | None = None
        self._counters: dict[CgroupId, int] = {}

    def update(
        self, snapshot: Snapshot, workloads: tuple[Workload, ...], oldest_ns: int
    ) -> float | None:
        """Return the mean since the last call; ``None`` without two snapshots of fresh data.

        Who came since is counted from the next call on. Data older than *oldest_ns* is not fresh.
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
        for cgroup, count in self._counters.items():
            ran_ns += max(0, count - known.get(cgroup, count))
        return ran_ns / dt_ns
