# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The grants of quota: CPUs for each best-effort workload, from the demands of two channels.

The quota is the knob of the cpu channel and the last rung of the cache channel. The larger demand
of the two applies; the loops of each channel track their own.
"""

from collections.abc import Collection, Container, Mapping
from functools import partial

from controller.core.channels.allocator import Users
from controller.core.channels.cpu_channel import CpuChannel
from controller.core.channels.ladder import SharedQuotaRung, TickContext
from controller.core.harm.cut import Claim, relative_harm
from controller.core.loop.channel_loops import ChannelLoops
from controller.core.model import CgroupId, Channel, Knob
from controller.core.settings import SafeState
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import WorkloadIndex

__all__ = ("Newcomers", "QuotaGrants")

# Evidence of harm is that of some seconds.
_UNPROVEN_NS = 5 * NS_PER_SEC


class QuotaGrants:
    """Divides CPUs at the demand of *cpu*, or at that of the cache channel for its rung *shared*.

    ``blocked`` are the best-effort workloads whose quota cannot be moved now.
    """

    def __init__(self, cpu: CpuChannel, shared: SharedQuotaRung) -> None:
        self._cpu = cpu
        self._rung = cpu.rung
        self._shared = shared
        self._newcomers = Newcomers()
        self._granted: dict[CgroupId, float] = {}
        # The cgroups above workloads that may be limited too, and can be moved now.
        self._parents: Mapping[CgroupId, CgroupId] = {}
        self.blocked: frozenset[CgroupId] = frozenset()

    def update(self, context: TickContext) -> None:
        """Determine which quotas can be moved now."""
        index, knobs, now_ns = context.workload_index, context.knobs, context.now_ns
        self.blocked = knobs.blocked(index.best_effort, Knob.CPU_QUOTA, now_ns)
        parents = index.quota_parents
        fixed = knobs.blocked(parents.values(), Knob.CPU_QUOTA, now_ns)
        self._parents = {each: at for each, at in parents.items() if at not in fixed}

    def grant(self, cache: ChannelLoops, context: TickContext) -> dict[CgroupId, float]:
        """Return the CPUs to grant by cgroup; the others are not limited.

        *cache* are the loops of the cache channel.
        """
        cpu, rung, new, index = self._cpu, self._rung, self._newcomers, context.workload_index
        present, floor = index.best_effort, index.limits[Knob.CPU_QUOTA].floor
        part = self._shared.part
        demand = max(cpu.limiter.applied, part)
        loops = cpu.loops
        if demand <= 0 and (not loops or loops.safe or loops.is_ruled_out):
            # No service to protect, no data, or another cause: no hold-off time.
            rung.release()
            if loops.safe and cpu.loops.settings.safe_state is SafeState.FLOOR:
                rung.set_floor(floor, len(present))
                return rung.floors(present, self._parents)
            return rung.amounts

        least = max(floor, rung.floor_each)
        new.update(
            *(present, self.blocked, rung.wants, context.tracker.active, least, context.now_ns),
            squeezed=rung.engaged and demand > 0,
        )
        # What does no harm on the cache channel has no limit where it would hardly be cut for it.
        spares = cpu.loops.settings.law.spare_harmless and cpu.limiter.applied <= 0
        charges = cache.charges if spares else {}
        users = Users(
            number=len(present),
            floor_each=floor,
            blocked=self.blocked,
            parents=self._parents,
            requests=index.cpu_requests,
            harmless=context.harm.harmless(charges) if charges else frozenset(),
            steady=part > cpu.limiter.applied,
        )
        amounts = rung.update(
            demand,
            users,
            partial(self._use, context),
            context.now_ns,
            partial(self._harm, cache.charges, context),
            partial(self._growth, context),
        )
        return self._with_newcomers(amounts, least)

    def floor_each(self, index: WorkloadIndex) -> float:
        """Return the least CPUs of a best-effort workload, with and without a squeeze."""
        self._rung.set_floor(index.limits[Knob.CPU_QUOTA].floor, len(index.best_effort))
        return self._rung.floor_each

    def _use(self, context: TickContext) -> dict[CgroupId, float]:
        # Of a thousand workloads only a few run.
        cpus, active = context.tracker.use.cpus, self._active_use(context)
        present, new = context.workload_index.best_effort, self._newcomers
        known = {each: cpus[each] for each in self._rung.wants if each in cpus} | active
        use = {each: cpus for each, cpus in known.items() if each in present}
        for each in new.waiting:
            use.pop(each, None)
        return use | new.wants

    def _active_use(self, context: TickContext) -> dict[CgroupId, float]:
        """Return the CPUs of the workloads that use any.

        That is the smoothed use. The exception is a workload without a limit that used twice as
        much in each of the last two ticks: it has just begun to run.
        """
        grants, lasting = self._rung.grants, context.tracker.use.lasting
        return {
            each: cpus if each in grants or lasting(each) < 2 * cpus else lasting(each)
            for each, cpus in context.tracker.active.items()
        }

    def _growth(self, context: TickContext) -> float:
        """Return what workloads without a grant use more than they want; see ``update`` of a rung.

        So that a new workload does not wait a second for its quota. Nobody is limited below the
        floor.
        """
        rung, new = self._rung, self._newcomers
        return sum(
            max(0.0, cpus - max(rung.floor_each, rung.wants.get(each, 0.0)))
            for each, cpus in {**self._active_use(context), **new.wants}.items()
            if each in context.workload_index.best_effort
            and not (each in rung.grants or each in self.blocked or each in new.waiting)
        )

    def _harm(
        self, charges: Mapping[str, float], context: TickContext, wants: Mapping[CgroupId, float]
    ) -> Mapping[CgroupId, float]:
        """Return the harm of each workload per CPU, on the channels that demand a squeeze.

        *charges* are those of the cache channel.
        """
        cpu, tracker, blame = self._cpu, context.tracker, context.tracker.blame
        demand, others = 1.0, list[Claim]()
        if cpu.loops.settings.law.cut_by_signal:
            demand, traffic = cpu.limiter.applied, context.usage.of(Channel.CACHE).rates
            others = context.harm.claims(self._shared.part, charges, traffic, tracker.use.cpus)
        own = cpu.loops.charges
        charged = sum(own.values())
        claims = [
            Claim(demand * charge / charged, blame.blame_for(service), blame.use)
            for service, charge in own.items()
        ] or [Claim(demand, blame.culprits, blame.use)]
        harm = relative_harm((each for each in (*claims, *others) if each.weight > 0), wants)
        return self._newcomers.without_evidence(harm)

    def _with_newcomers(
        self, amounts: dict[CgroupId, float], least: float
    ) -> dict[CgroupId, float]:
        """Return *amounts*, with *least* for the newcomers that they were not divided among."""
        new = self._newcomers
        if not new.waiting and not new.wants:
            return amounts
        undivided = (each for each in (*new.waiting, *new.wants) if each not in self._rung.wants)
        granted = {each: least for each in undivided if each not in self.blocked} | amounts
        if granted != self._granted:
            self._granted = granted  # else the same object, so that nothing is compared again
        return self._granted


class Newcomers:
    """Best-effort workloads that come in a squeeze, before it is known what they want.

    The want of a workload is measured when it has run. A newcomer has the floor until then, so that
    it has a quota before its first instruction. That is the floor of the configuration, also where
    many workloads have lower ones: the container runtime runs in a new cgroup first, and needs some
    30 ms. A newcomer that uses much of the floor is limited by it, and its use no longer tells its
    want. It is taken to want as much as the busy ones do on average, and for some seconds to do as
    much harm as the worst of them: there is no evidence yet, and without any it would not be
    limited. One that uses little for some seconds is measured like all others.

    ``waiting`` are those at the floor, with the time in ns since when each waits, ``wants`` those
    of the ones that run. A newcomer is none any more as soon as the squeeze is divided by its want.
    """

    __slots__ = ("_known", "_proven_ns", "waiting", "wants")

    def __init__(self) -> None:
        self._known: Collection[CgroupId] = ()
        # When there is evidence of what they do.
        self._proven_ns: dict[CgroupId, int] = {}
        self.waiting: dict[CgroupId, int] = {}
        self.wants: dict[CgroupId, float] = {}

    def update(
        self,
        present: Collection[CgroupId],
        blocked: Container[CgroupId],
        divided: Mapping[CgroupId, float],
        use: Mapping[CgroupId, float],
        floor: float,
        now_ns: int,
        *,
        squeezed: bool,
    ) -> None:
        """Take the best-effort workloads that are *present* in this tick.

        :param blocked: those that cannot be limited now, so their use tells their want.
        :param divided: the wants by which the squeeze is divided now.
        :param use: the CPUs of those that use any; a newcomer has *floor*.
        :param squeezed: whether a service is protected by limits of best-effort work now.
        """
        self._proven_ns = {
            each: proven_ns
            for each, proven_ns in self._proven_ns.items()
            if squeezed and now_ns < proven_ns
        }
        before = {*self.waiting, *self.wants}
        if present is not self._known:
            before.update(each for each in present if each not in self._known)
            self._known = present
        if not before:
            return
        busy = [want for want in divided.values() if want >= floor]
        average = sum(busy) / len(busy) if busy else floor
        waiting, wants = {}, {}
        # In the order of the workloads: a result must not depend on the order of a set.
        for cgroup in present if squeezed else ():
            if cgroup not in before or cgroup in divided:
                continue
            used, since_ns = use.get(cgroup, 0.0), self.waiting.get(cgroup, now_ns)
            if used >= 0.5 * floor:
                wants[cgroup] = used if cgroup in blocked else max(used, average)
            elif not used or now_ns - since_ns < _UNPROVEN_NS:
                waiting[cgroup] = since_ns
        self.waiting, self.wants = waiting, wants
        self._proven_ns |= dict.fromkeys(wants, now_ns + _UNPROVEN_NS)

    def without_evidence(self, harm: Mapping[CgroupId, float]) -> Mapping[CgroupId, float]:
        """Return *harm* with the largest one for newcomers of which there is no evidence yet."""
        if not self._proven_ns:
            return harm
        most = max(harm.values(), default=1.0)
        return {each: most if each in self._proven_ns else own for each, own in harm.items()}
