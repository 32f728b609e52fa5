# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The cpu channel: its loops, their evidence, the feed-forward ceiling and the grants of quota."""

from collections.abc import Mapping, Sequence, Set

from controller.core.channels.allocator import ProportionalAllocator, Users
from controller.core.channels.ladder import TickContext
from controller.core.channels.newcomers import Newcomers
from controller.core.harm.cut import Claim, relative_harm
from controller.core.indicators.measurement import WindowReading
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.knob_values import MAX_PERIOD_US, MIN_QUOTA_US
from controller.core.loop.channel_loops import ChannelLoops, Specs
from controller.core.loop.channel_pace import PacedLimiter
from controller.core.loop.evidence import Evidence
from controller.core.model import CgroupId, Channel, Knob
from controller.core.settings import IndicatorSpec, SafeState, Settings
from controller.core.workload_index import Service, WorkloadIndex

__all__ = ("CpuChannel",)


class CpuChannel:
    """Turns indicators into one demand, and the demand into CPUs for best-effort workloads.

    The quota is also the last rung of the cache channel. ``grant`` takes that channel's demand for
    it, and the larger demand of the two applies. The loops of each channel track their own demand.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.loops = ChannelLoops(Channel.CPU, settings)
        self._limiter = PacedLimiter(self.loops)
        self._newcomers = Newcomers()
        self._granted: dict[CgroupId, float] = {}
        least_cpus = MIN_QUOTA_US / MAX_PERIOD_US
        self.rung = ProportionalAllocator(float(settings.host.cpus), least_cpus, low_floors=True)

    @property
    def demand(self) -> float:
        """The demand that is applied."""
        return self._limiter.applied

    def reconfigure(self, settings: Settings) -> None:
        """Take new settings; loops keep their demand."""
        self._settings = settings
        self.loops.reconfigure(settings)

    def release(self) -> None:
        """Set the demand to 0 at once and remove all grants, without a hold-off time."""
        self._limiter.jump(0.0)
        self.rung.release()

    def step(
        self, specs: Specs, blocked: frozenset[CgroupId], context: TickContext, hold: bool
    ) -> None:
        """Advance all loops, and the demand unless *hold*.

        The quota of the *blocked* best-effort workloads cannot be moved.
        """
        tracker, workload_index, dt_s = context.tracker, context.workload_index, context.dt_s

        def evidence(service: Service, spec: IndicatorSpec) -> Evidence:
            return self._evidence(service, spec, tracker)

        limiter = self._limiter
        choice = self.loops.bid(
            tracker, workload_index, specs, evidence, limiter.applied, dt_s, hold
        )
        if not self.loops or _all_blocked(tracker, workload_index, blocked):
            # No service to protect, or no quota to move: the loops have to track a demand of 0.
            limiter.applied = 0.0
        elif not hold:
            choice = limiter.let_go(choice)
            limits = workload_index.limits[Knob.CPU_QUOTA]
            choice = limiter.move(choice, limits, self._settings.law, context.now_ns, dt_s)
        self.loops.track(choice, limiter.applied, dt_s)
        if self.loops.safe:
            limiter.applied = 0.0
        self._feed_forward(context)

    def grant(
        self,
        other: float,
        claims: Sequence[Claim],
        blocked: frozenset[CgroupId],
        parents: Mapping[CgroupId, CgroupId],
        harmless: Set[CgroupId],
        context: TickContext,
    ) -> dict[CgroupId, float]:
        """Return the CPUs to grant by cgroup, at the larger of this channel's demand and *other*.

        *other* is the demand of the cache channel, and *claims* its part of the cut. *parents* maps
        workloads to cgroups above them that may be limited too. The *harmless* do no harm on the
        cache channel, and have no limit where they would hardly be cut for it. Cgroups without a
        grant are not limited.
        """
        tracker, workload_index = context.tracker, context.workload_index
        floor = workload_index.limits[Knob.CPU_QUOTA].floor
        demand = max(self._limiter.applied, other)
        present = workload_index.best_effort
        if demand <= 0 and (not self.loops or self.loops.safe):
            # No service to protect, or no data: no hold-off time.
            self.rung.release()
            if self.loops and self._settings.safe_state is SafeState.FLOOR:
                self.rung.set_floor(floor, len(present))
                return self.rung.floors(present, parents)
            return self.rung.amounts

        innocent = self.loops.is_ruled_out and other <= 0
        new, least = self._newcomers, max(floor, self.rung.floor_each)
        new.update(
            *(present, blocked, self.rung.wants, tracker.active, least, context.now_ns),
            squeezed=self.rung.engaged and demand > 0 and not innocent,
        )

        def find_use() -> dict[CgroupId, float]:
            # Of a thousand workloads only a few run.
            cpus, known = tracker.cpu_use, {**tracker.active, **self.rung.wants}
            use = {each: cpus[each] for each in known if each in present and each in cpus}
            for each in new.waiting:
                use.pop(each, None)
            return use | new.wants

        def find_harm(wants: Mapping[CgroupId, float]) -> Mapping[CgroupId, float]:
            return new.without_evidence(self._harm(claims, tracker, wants))

        def find_growth() -> float:
            # So that a new workload does not wait a second for its quota. Nobody is limited below
            # the floor.
            rung = self.rung
            return sum(
                max(0.0, cpus - max(rung.floor_each, rung.wants.get(each, 0.0)))
                for each, cpus in {**tracker.active, **new.wants}.items()
                if each in present
                and not (each in rung.grants or each in blocked or each in new.waiting)
            )

        users = Users(
            number=len(present),
            floor_each=floor,
            blocked=blocked,
            parents=parents,
            requests=workload_index.cpu_requests,
            harmless=harmless if self._limiter.applied <= 0 else frozenset(),
            innocent=innocent,
            steady=other > self._limiter.applied,
        )
        amounts = self.rung.update(demand, users, find_use, context.now_ns, find_harm, find_growth)
        if not new.waiting and not new.wants:
            return amounts
        undivided = (each for each in (*new.waiting, *new.wants) if each not in self.rung.wants)
        granted = {each: least for each in undivided if each not in blocked} | amounts
        if granted != self._granted:
            self._granted = granted  # else the same object, so that nothing is compared again
        return self._granted

    def floor_each(self, workload_index: WorkloadIndex) -> float:
        """Return the least CPUs of a best-effort workload, with and without a squeeze."""
        floor = workload_index.limits[Knob.CPU_QUOTA].floor
        self.rung.set_floor(floor, len(workload_index.best_effort))
        return self.rung.floor_each

    def _harm(
        self,
        others: Sequence[Claim],
        tracker: IndicatorTracker,
        wants: Mapping[CgroupId, float],
    ) -> Mapping[CgroupId, float]:
        """Return the harm of each workload per CPU, on the channels that demand a squeeze."""
        demand, blame = self._limiter.applied, tracker.blame
        if not self._settings.law.cut_by_signal:
            demand, others = 1.0, ()
        charges = self.loops.charges
        charged = sum(charges.values())
        claims = [
            Claim(demand * charge / charged, blame.blame_for(service), blame.use)
            for service, charge in charges.items()
        ] or [Claim(demand, blame.culprits, blame.use)]
        claims.extend(others)
        return relative_harm((each for each in claims if each.weight > 0), wants)

    def _feed_forward(self, context: TickContext) -> None:
        tracker = context.tracker
        cpus = self._settings.host.cpus - self._settings.reserve_cpus - tracker.system_cpus
        need = sum(
            each.oncpu + self._unaccepted(service, tracker) * each.inflicted
            for service, each in tracker.cpu_need.items()
        )
        self.rung.ceiling.update(context.now_ns, context.elapsed_s, cpus, need)

    def _unaccepted(self, service: str, tracker: IndicatorTracker) -> float:
        """Return the part of a service's inflicted wait that counts as lack of CPU, from 0 to 1.

        Around its sweet point a service waits as much as it may, so the wait is no lack of CPU and
        the loop alone decides. Above deviation 1 (tolerance times the sweet point) the part rises
        linearly, and is 1 from deviation 2 on. What other work inflicted does not count: a limit of
        best-effort work does not give it back.
        """
        part = min(1.0, max(0.0, (self.loops.of(service).excess or 0.0) - 1.0))
        return part * (tracker.blame.share(service) or 0.0)

    def waits_of(self, service: Service, tracker: IndicatorTracker) -> Evidence:
        """Return the evidence about the waits of *service*, also where the channel has no loop."""
        return self._evidence(service, service.profile.indicators[0], tracker)

    def _evidence(
        self, service: Service, spec: IndicatorSpec, tracker: IndicatorTracker
    ) -> Evidence:
        readings = [tracker.reading(cgroup, spec) for cgroup in service.cgroups]
        known = [each for each in readings if each is not None]
        return Evidence(
            be_share=tracker.blame.share(service.name),
            throttled_ratio=self._throttled_ratio(known),
            inflicted_cpus=sum(each.inflicted_ratio for each in known),
            steal_cpus=tracker.steal_cpus,
            cpus=self._settings.host.cpus,
            host_cpus=sum(each.host_ratio for each in known),
            is_wait=True,
        )

    def _throttled_ratio(self, readings: Sequence[WindowReading]) -> float | None:
        """Return the share of its time in which a service was throttled; ``None``: not measured.

        Throttled time is summed over threads, so it is compared with the time in which threads ran
        or were throttled, and with one thread's time where that is more: a service that hardly runs
        is throttled rarely, however long its bursts are then.
        """
        measured = [each for each in readings if each.throttled_ns is not None]
        if not measured:
            return None
        throttled_ns = sum(each.throttled_ns or 0 for each in measured)
        return throttled_ns / sum(each.wanted_ns for each in measured)


def _all_blocked(
    tracker: IndicatorTracker, workload_index: WorkloadIndex, blocked: frozenset[CgroupId]
) -> bool:
    if not blocked:
        return False
    use = tracker.cpu_use
    present = [cgroup for cgroup in workload_index.best_effort if cgroup in use]
    return bool(present) and all(cgroup in blocked for cgroup in present)
