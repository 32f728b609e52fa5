# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""From a demand to an amount of a resource for each best-effort workload: CPUs, memory, disk bytes.

The total for all of best-effort runs geometrically from the ceiling (demand 0) to the sum of the
floors (demand 1): equal steps of demand are equal factors of the total. A service's latency is
about proportional to the quota, and its deviation is logarithmic, so the loop sees the same gain
everywhere. With a linear total the gain at the floor would be thirty times that at the ceiling.

The total is divided by harm where it is known: the workload that does most loses most.

Where the workloads below a common parent are too many for one amount each, the parent gets one too:
the kernel has a least quota, and those of hundreds of workloads add up to more than a full squeeze
may leave. It is the sum of what each of them would have without the least quota. The parent has it
only while the difference matters.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
import math
from types import MappingProxyType
from typing import NamedTuple

from controller.core.harm.cut import (
    allocate,
    divide_harm,
    even_harm,
    lower_floors,
    parent_amounts,
    share_by_request,
    share_unused,
)
from controller.core.harm.resource_usage import WANT_DECAY_S
from controller.core.knobs.grants import HARDLY_CUT, NOISE, SteadyAmounts
from controller.core.limiters import Headroom, HoldOffLatch
from controller.core.model import CgroupId
from controller.core.units import NS_PER_SEC

__all__ = ("ProportionalAllocator", "Users", "total_for")

# A workload that uses this part of its grant or more is limited by the grant, and would use more
# without it.
_LIMITED = 0.85
# A want below this part of the least amount counts as no want. It also keeps the geometric total
# defined while nothing is used.
_NOTHING = 1e-3
# The total is divided anew when it moved by this part, when workloads without a grant use that much
# more of it, or after a second: with a thousand workloads the division is the longest part of a
# tick.
_LEAST_MOVE = 0.02
# All floors together are at most this part of the capacity. With a floor of 50 mcpu each, forty
# workloads on two CPUs would be promised the whole machine, and a squeeze would have no effect.
_FLOORS = 0.25
# The same with low floors: a hundred workloads with a quarter of 16 CPUs hurt a service almost as
# much as without a squeeze. Two workloads keep the floor of the configuration also on small nodes.
_LOW_FLOORS = 0.02
# By this factor the want of a workload grows at each division towards its part by request, while
# it uses what it has.
_GROWTH = 1.25


def total_for(demand: float, floor: float, ceiling: float) -> float:
    """Return the total at *demand* in [0, 1], between *floor* > 0 and *ceiling*."""
    if ceiling <= floor:
        return floor
    return ceiling * math.pow(floor / ceiling, demand)


class Users(NamedTuple):
    """The workloads that a resource is divided among, *number* of them, and how.

    ``floor_each``: the least amount by the configuration. ``blocked`` ones cannot be limited (the
    kernel refuses, or another program holds the knob): they keep what they use, and the others are
    cut for them. ``parents`` maps workloads to the cgroup above them that can be limited too.
    Workloads with ``requests`` that do the same harm get amounts in proportion to them, and so are
    their floors. ``harmless`` ones are not limited as long as they would hardly be cut.

    ``steady``: the amounts are those of ``SteadyAmounts``.
    """

    number: int
    floor_each: float
    blocked: frozenset[CgroupId] = frozenset()
    parents: Mapping[CgroupId, CgroupId] = MappingProxyType({})
    requests: Mapping[CgroupId, float] = MappingProxyType({})
    harmless: Set[CgroupId] = frozenset()
    steady: bool = False


@dataclass(slots=True)
class ProportionalAllocator:
    """Grants amounts of one resource to best-effort workloads, from a demand.

    It engages with the first demand, at the feed-forward ceiling or the use, whichever is less, and
    releases after a hold-off time without demand, in which no amount falls.

    ``grants`` is the amount of each workload that is limited now; empty if none is. ``common`` is
    that of each parent cgroup that is limited as well, because its workloads are too many.
    ``amounts`` has both. ``wants`` is what the workloads would use without a limit. ``total`` and
    ``floor`` are for all of best-effort together, ``floor_each`` is for each workload. All are in
    the unit of the resource, of which the machine has ``capacity``, and of which no less than
    ``least`` can be granted. ``low_floors``: see ``set_floor``.
    """

    capacity: float
    least: float
    low_floors: bool = False
    grants: dict[CgroupId, float] = field(default_factory=dict)
    common: dict[CgroupId, float] = field(default_factory=dict)
    amounts: dict[CgroupId, float] = field(default_factory=dict)
    wants: dict[CgroupId, float] = field(default_factory=dict)
    total: float | None = None
    floor: float = 0.0
    floor_each: float = field(init=False)
    ceiling: Headroom = field(init=False)
    _latch: HoldOffLatch = field(default_factory=HoldOffLatch)
    _latches: dict[CgroupId, HoldOffLatch] = field(default_factory=dict)
    _steady_amounts: SteadyAmounts = field(default_factory=SteadyAmounts)
    # What all floors together may be at most, and floors that differ because of requests.
    _most: float = math.inf
    _floors: Mapping[CgroupId, float] = field(default_factory=dict)
    # The total at the last division, and its time.
    _allocated: float = 0.0
    _allocated_ns: int = 0

    def __post_init__(self) -> None:
        """Start without a limit, at the whole capacity."""
        self.ceiling = Headroom(self.capacity)
        self.floor_each = self.least

    @property
    def engaged(self) -> bool:
        """Whether best-effort work is limited."""
        return self._latch.on

    def update(
        self,
        demand: float,
        users: Users,
        find_use: Callable[[], Mapping[CgroupId, float]],
        now_ns: int,
        find_harm: Callable[[Mapping[CgroupId, float]], Mapping[CgroupId, float]] | None = None,
        find_growth: Callable[[], float] = lambda: 0.0,
    ) -> dict[CgroupId, float]:
        """Return ``amounts`` at *demand*.

        *find_use* returns the use by workload. It is called only when the use is needed, because it
        may have to read the use of every workload. Its result names those of the *users* that use
        anything, or that ``wants`` names. *find_harm* returns, for the wants, the harm of each per
        unit; ``None``: it is not known, and all are cut alike. *find_growth* returns by how much
        workloads without a grant use more than they want, for example new ones.
        """
        was_engaged = self._latch.on
        if not self._latch.update(demand > 0, now_ns):
            self._clear()
            return self.amounts
        if not was_engaged:
            self.ceiling.lower_to(sum(find_use().values()))
        total = total_for(demand, self.floor, self.ceiling.amount) if was_engaged else None
        if find_harm is None:
            self.total = total
        age_ns, least_move = now_ns - self._allocated_ns, _LEAST_MOVE * self._allocated
        if (
            total is None
            or age_ns >= NS_PER_SEC
            or abs(total - self._allocated) > least_move
            or find_growth() > least_move
        ):
            use = find_use()
            self.set_floor(users.floor_each, users.number)
            self._update_wants(use, min(age_ns, NS_PER_SEC) / 1e9, users.parents)
            self._floors = self._share_by_request(use, users.requests)
            harm = None if find_harm is None else find_harm(self.wants)
            divided, lowered = self._divide(demand, harm, users)
            before = self.grants, self.common
            self._grant(divided, users if lowered else users._replace(parents={}), now_ns)
            if was_engaged and demand <= 0:
                self._keep(*before)
            self._allocated_ns = now_ns
        return self.amounts

    def set_floor(self, floor_each: float, number: int) -> None:
        """Set ``floor_each`` to the limit of the configuration, less where there are many users.

        All floors together are at most a quarter of the capacity, unless *least* is more. With
        ``low_floors`` they are at most 2 % of it, or what the configuration gives to two workloads.
        """
        if self.low_floors:
            self._most = max(_LOW_FLOORS * self.capacity, 2 * floor_each)
        else:
            self._most = _FLOORS * self.capacity
        self.floor_each = max(self.least, min(floor_each, self._most / max(1, number)))

    def floors(
        self, users: Iterable[CgroupId], parents: Mapping[CgroupId, CgroupId]
    ) -> dict[CgroupId, float]:
        """Return the amounts of *users* and their *parents* at the floor; see ``set_floor``."""
        own = dict.fromkeys(users, self.floor_each)
        if not parents:
            return own
        lowered = lower_floors(own, parents, self._most)
        return own | parent_amounts(lowered, own, parents, {}, self.least)

    def release(self) -> None:
        """Remove all grants at once, without a hold-off time; the next demand engages anew."""
        self._latch = HoldOffLatch()
        self._clear()

    def _clear(self) -> None:
        self.wants.clear()
        self._latches.clear()
        self.grants = self.amounts = {}
        self.common = {}
        self.total = None

    def _divide(
        self, demand: float, harm: Mapping[CgroupId, float] | None, users: Users
    ) -> tuple[dict[CgroupId, float], bool]:
        """Return the amount of each workload at *demand*, and whether floors had to be lowered."""
        wants = self.wants
        floors = {
            cgroup: min(self._floor_of(cgroup), want)
            for cgroup, want in wants.items()
            if cgroup not in users.blocked
        }
        parents = users.parents
        lowered = lower_floors(floors, parents, self._most) if parents else floors
        least = {cgroup: lowered.get(cgroup, want) for cgroup, want in wants.items()}
        self.floor = max(_NOTHING * self.least, sum(least.values()))
        ceiling = self.ceiling.amount
        self.total = self._allocated = total_for(demand, self.floor, ceiling)
        if harm is None:
            return allocate(self.total, wants, least), lowered != floors
        if self._floors:
            harm = even_harm(harm, users.requests)
        divided = divide_harm(demand, ceiling, wants, least, harm)
        if users.harmless:
            divided = share_unused(divided, ceiling, wants, users.harmless)
        self.total = sum(divided.values())
        return divided, lowered != floors

    def _share_by_request(
        self, use: Mapping[CgroupId, float], requests: Mapping[CgroupId, float]
    ) -> dict[CgroupId, float]:
        """Let workloads with a request want in proportion to it; return floors in proportion."""
        wants = self.wants
        present = {each: requests[each] for each in wants if each in requests}
        if not present or len(requests) < 2:  # a single request is in no proportion
            return {}
        most = {
            each: (_GROWTH if use.get(each, 0.0) >= _LIMITED * self.grants.get(each, want) else 1.0)
            * want
            for each, want in wants.items()
        }
        self.wants = share_by_request(wants, present, most)
        part = self.floor_each * len(present) / sum(present.values())
        return {each: max(self.least, part * request) for each, request in present.items()}

    def _floor_of(self, cgroup: CgroupId) -> float:
        return self._floors.get(cgroup, self.floor_each)

    def _grant(self, divided: Mapping[CgroupId, float], users: Users, now_ns: int) -> None:
        # Only workloads that are harmless, or were, have a latch of their own.
        self._latches = {each: latch for each, latch in self._latches.items() if each in divided}
        self.grants = {
            cgroup: max(self._floor_of(cgroup), amount)
            for cgroup, amount in divided.items()
            if self._is_limited(cgroup, amount, cgroup in users.harmless, now_ns)
        }
        if users.steady:
            self.grants = self._steady_amounts.update(self.grants, self.floor_each, now_ns)
        self.common = (
            parent_amounts(divided, self.grants, users.parents, self.common, self.least)
            if users.parents
            else {}
        )
        self.amounts = self.grants | self.common

    def _keep(self, grants: Mapping[CgroupId, float], common: Mapping[CgroupId, float]) -> None:
        """Limit nothing more than by *grants* and *common*: the ceiling follows other loads."""
        self.grants = _at_least(self.grants, grants)
        self.common = _at_least(self.common, common)
        self.amounts = self.grants | self.common

    def _is_limited(self, cgroup: CgroupId, amount: float, harmless: bool, now_ns: int) -> bool:
        """Return whether *cgroup* has a limit; a harmless one loses it after a hold-off time."""
        want = self.wants[cgroup]
        limited = cgroup in self.grants
        needed = (
            amount < (1 - HARDLY_CUT) * want if harmless else limited or amount < (1 - NOISE) * want
        )
        latch = self._latches.get(cgroup)
        if latch is None:
            if not (harmless and limited):
                return needed
            latch = self._latches[cgroup] = HoldOffLatch()
            needed = True
        return latch.update(needed, now_ns)

    def _update_wants(
        self, use: Mapping[CgroupId, float], dt_s: float, parents: Mapping[CgroupId, CgroupId]
    ) -> None:
        # The want is the use, but does not fall while the grant limits the use. Otherwise a squeeze
        # would lower the wants, and with them the share of a squeezed workload.
        keep = math.exp(-dt_s / WANT_DECAY_S)
        wants: dict[CgroupId, float] = {}
        for cgroup, now in use.items():
            want = self.wants.get(cgroup)
            if want is None or now > want:
                wants[cgroup] = now
                continue
            limited = parents.get(cgroup) in self.common
            if not limited and now < _LIMITED * self.grants.get(cgroup, math.inf):
                want = now + keep * (want - now)
            if want >= _NOTHING * self.least:
                wants[cgroup] = want
        self.wants = wants


def _at_least(
    amounts: Mapping[CgroupId, float], before: Mapping[CgroupId, float]
) -> dict[CgroupId, float]:
    return {each: max(amount, before[each]) for each, amount in amounts.items() if each in before}
