# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""From demand to a share of a resource for each best-effort workload: CPUs, memory, disk bytes.

The total runs geometrically from the ceiling (demand 0) to the floors (demand 1): equal steps
of demand are equal factors of quota. A service's latency is about proportional to the quota,
and its deviation is logarithmic, so the loop sees the same gain everywhere. A linear total
would make the gain at the floor thirty times that at the ceiling.

The culprit pays: how a total for all best-effort work becomes a quota for each workload.
"""

from collections.abc import Callable, Mapping
import math
from typing import TypeVar

from controller.core.control.limiters import Headroom, HoldOffLatch
from controller.core.model import CgroupId
from controller.core.units import NS_PER_SEC

__all__ = (
    "ProportionalAllocator",
    "allocate",
    "total_for",
    "water_fill",
)

Key = TypeVar("Key")


def water_fill(
    cut: float, weights: Mapping[Key, float], room: Mapping[Key, float]
) -> dict[Key, float]:
    """Share *cut* in proportion to *weights*, nobody more than his *room*.

    What one cannot pay, the others pay in proportion. Weight zero pays nothing before the
    weighted have paid all they can; then the rest is shared in proportion to room.
    """
    paid = dict.fromkeys(room, 0.0)
    remaining = min(cut, sum(room.values()))
    for shares in (weights, room):
        # Each round either ends the cut or empties somebody, poorest (per weight) first.
        payers = sorted(
            (key for key in room if shares.get(key, 0.0) > 0 and room[key] > paid[key]),
            key=lambda key: (room[key] - paid[key]) / shares[key],
        )
        weight_left = sum(shares[key] for key in payers)
        for key in payers:
            if remaining <= 0:
                break
            due = min(room[key] - paid[key], remaining * shares[key] / weight_left)
            paid[key] += due
            remaining -= due
            weight_left -= shares[key]
            if weight_left <= 0:
                break
    return paid


def allocate(
    total: float,
    wants: Mapping[Key, float],
    least: Mapping[Key, float],
    blame: Mapping[Key, float],
) -> dict[Key, float]:
    """Return CPUs for each of *wants*, *total* together, the cut shared by *blame*.

    Nobody gets less than his *least*. A total above the wants is spread in proportion to them.
    """
    wanted = sum(wants.values())
    if wanted <= 0:
        return {}
    if total >= wanted:
        return {key: want * total / wanted for key, want in wants.items()}
    room = {key: max(0.0, want - least[key]) for key, want in wants.items()}
    paid = water_fill(wanted - total, blame, room)
    return {key: want - paid[key] for key, want in wants.items()}


_HOLD_NS = 20 * NS_PER_SEC
_LONGEST_HOLD_NS = 3600 * NS_PER_SEC
# At this part of its grant a workload is held back by it, and would use more without.
_LIMITED = 0.85
_WANT_DECAY_S = 30.0
# Who wanted less than this part of the least share wants nothing.
_NOTHING = 1e-3
# A cut smaller than this is no reason to touch a workload.
_WORTH_A_WRITE = 0.05
# The split among the workloads is made anew when the total moved by this part, or in a second:
# with a thousand workloads it is the longest part of a tick.
_WORTH_SHARING = 0.02
_SHARE_NS = NS_PER_SEC
# Keeps the geometric total defined while nobody uses anything, as a part of the least share.
_LEAST_FLOOR = 0.1
# All floors together are at most this part of the machine: with a floor of 50 mcpu each, forty
# workloads on two CPUs would be promised the whole machine, and a squeeze would have no bite.
_FLOORS = 0.25


def total_for(demand: float, floor: float, ceiling: float) -> float:
    """Return the total at *demand*, between *floor* > 0 and *ceiling*."""
    if ceiling <= floor:
        return floor
    return ceiling * math.pow(floor / ceiling, demand)


class ProportionalAllocator:
    """Engages on demand, from the feed-forward ceiling downward, and lets go after a while.

    ``grants`` is what the workloads that are limited now may have (empty: everybody is free).
    ``wants`` is what they would use without.
    ``total`` and ``floor`` are for all of best-effort together, ``floor_each`` for each; all in
    the unit of the resource, of which the machine has *capacity*, and of which no less than
    *least* can be granted.
    """

    __slots__ = (
        "_capacity",
        "_latch",
        "_least",
        "_shared",
        "_shared_ns",
        "ceiling",
        "floor",
        "floor_each",
        "grants",
        "total",
        "wants",
    )

    def __init__(self, capacity: float, least: float) -> None:
        self._capacity = capacity
        self._least = least
        self._latch = HoldOffLatch(_HOLD_NS, _LONGEST_HOLD_NS)
        self.wants: dict[CgroupId, float] = {}
        self._shared = 0.0
        self._shared_ns = 0
        self.ceiling = Headroom(capacity)
        self.grants: dict[CgroupId, float] = {}
        self.total: float | None = None
        self.floor = 0.0
        self.floor_each = least

    @property
    def engaged(self) -> bool:
        """Whether best-effort work is under a limit of ours."""
        return self._latch.on

    def update(
        self,
        demand: float,
        find_use: Callable[[], Mapping[CgroupId, float]],
        users: int,
        blame: Mapping[CgroupId, float],
        blocked: frozenset[CgroupId],
        floor_each: float,
        now_ns: int,
    ) -> dict[CgroupId, float]:
        """Return what to grant at *demand*; use and *blame* are amounts per workload.

        *find_use* is called when the use is needed: it may have to look at every workload. It
        names those of *users* workloads that use anything, or that ``wants`` names. The *blocked*
        among them cannot be limited (the kernel or somebody else refuses): they keep what they
        use, and the others pay for them.
        """
        was_engaged = self._latch.on
        if not self._latch.update(demand > 0, now_ns):
            self.release()
            return self.grants
        if not was_engaged:
            self.ceiling.start_at(sum(find_use().values()))
        self.total = total_for(demand, self.floor, self.ceiling.cpus) if was_engaged else None
        age_ns = now_ns - self._shared_ns
        if self.total is None or age_ns >= _SHARE_NS or self._moved(self.total):
            use = find_use()
            most = _FLOORS * self._capacity / max(1, users)
            self.floor_each = max(self._least, min(floor_each, most))
            self._update_wants(use, min(age_ns, _SHARE_NS) / 1e9)
            self._share(demand, blame, blocked)
            self._shared_ns = now_ns
        return self.grants

    def _moved(self, total: float) -> bool:
        return abs(total - self._shared) > _WORTH_SHARING * self._shared

    def _share(
        self,
        demand: float,
        blame: Mapping[CgroupId, float],
        blocked: frozenset[CgroupId],
    ) -> None:
        wants, floor_each = self.wants, self.floor_each
        least = {
            cgroup: want if cgroup in blocked else min(floor_each, want)
            for cgroup, want in wants.items()
        }
        self.floor = max(_LEAST_FLOOR * self._least, sum(least.values()))
        self.total = self._shared = total_for(demand, self.floor, self.ceiling.cpus)
        before = self.grants
        self.grants = {
            cgroup: max(floor_each, share)
            for cgroup, share in allocate(self.total, wants, least, blame).items()
            if cgroup in before or share < (1 - _WORTH_A_WRITE) * wants[cgroup]
        }

    def release(self) -> None:
        """Forget all grants: everybody is free."""
        self.wants.clear()
        self.grants = {}
        self.total = None

    def _update_wants(self, use: Mapping[CgroupId, float], dt_s: float) -> None:
        # What a workload would use without its grant: its use, but held while the grant limits
        # it, so that a squeeze does not make the squeezed look modest.
        keep = math.exp(-dt_s / _WANT_DECAY_S)
        wants: dict[CgroupId, float] = {}
        for cgroup, now in use.items():
            want = self.wants.get(cgroup)
            if want is None or now > want:
                wants[cgroup] = now
                continue
            if now < _LIMITED * self.grants.get(cgroup, math.inf):
                want = now + keep * (want - now)
            if want >= _NOTHING * self._least:
                wants[cgroup] = want
        self.wants = wants
