# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The cpu channel: its loops, their evidence, its demand and the feed-forward ceiling."""

from collections.abc import Iterable

from controller.core.channels.allocator import ProportionalAllocator
from controller.core.channels.ladder import TickContext
from controller.core.indicators.measurement import WindowReading
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.knob_values import MAX_PERIOD_US, MIN_QUOTA_US
from controller.core.loop.channel_loops import ChannelLoops, Specs
from controller.core.loop.channel_pace import PacedLimiter
from controller.core.loop.evidence import Evidence
from controller.core.model import CgroupId, Channel, Knob
from controller.core.settings import IndicatorSpec, Settings
from controller.core.workload_index import Service, WorkloadIndex

__all__ = ("CpuChannel",)


class CpuChannel:
    """Turns the indicators of waits for a CPU into one demand.

    ``rung`` divides the CPUs below its ceiling among best-effort workloads, see ``QuotaGrants``.
    ``limiter`` has the demand that is applied.
    """

    def __init__(self, settings: Settings) -> None:
        self.loops = ChannelLoops(Channel.CPU, settings)
        self.limiter = PacedLimiter(self.loops)
        least_cpus = MIN_QUOTA_US / MAX_PERIOD_US
        self.rung = ProportionalAllocator(float(settings.host.cpus), least_cpus, low_floors=True)

    def release(self) -> None:
        """Set the demand to 0 at once and remove all grants, without a hold-off time."""
        self.limiter.jump(0.0)
        self.rung.release()

    def step(self, specs: Specs, blocked: frozenset[CgroupId], context: TickContext) -> None:
        """Advance all loops, and the demand unless it is held.

        The quota of the *blocked* best-effort workloads cannot be moved.
        """
        tracker, workload_index, dt_s = context.tracker, context.workload_index, context.dt_s
        limiter = self.limiter

        def evidence(service: Service, spec: IndicatorSpec) -> Evidence:
            return self.evidence(service, spec, tracker)

        choice = self.loops.bid(
            tracker, workload_index, specs, evidence, limiter.applied, dt_s, context.hold
        )
        if not self.loops or _all_blocked(tracker, workload_index, blocked):
            # No service to protect, or no quota to move: the loops have to track a demand of 0.
            limiter.applied = 0.0
        elif not context.hold:
            choice = limiter.let_go(choice)
            limits = workload_index.limits[Knob.CPU_QUOTA]
            choice = limiter.move(choice, limits, context.now_ns, dt_s)
        self.loops.track(choice, limiter.applied, dt_s)
        if self.loops.safe:
            limiter.applied = 0.0
        self._feed_forward(context)

    def _feed_forward(self, context: TickContext) -> None:
        tracker, settings = context.tracker, self.loops.settings
        cpus = settings.host.cpus - settings.reserve_cpus - tracker.system_cpus
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

    def evidence(
        self, service: Service, spec: IndicatorSpec, tracker: IndicatorTracker
    ) -> Evidence:
        """Return what is known about the waits of *service* in the window of *spec*."""
        readings = [tracker.reading(cgroup, spec) for cgroup in service.cgroups]
        known = [each for each in readings if each is not None]
        return Evidence(
            be_share=tracker.blame.share(service.name),
            throttled_ratio=_throttled_ratio(known),
            inflicted_cpus=sum(each.inflicted_ratio for each in known),
            steal_cpus=tracker.steal_cpus,
            cpus=self.loops.settings.host.cpus,
            host_cpus=sum(each.host_ratio for each in known),
            is_wait=True,
        )


def _throttled_ratio(readings: Iterable[WindowReading]) -> float | None:
    """Return the share of its time in which a service was throttled; ``None``: not measured.

    Throttled time is summed over threads, so it is compared with the time in which threads ran or
    were throttled, and with one thread's time where that is more: a service that hardly runs is
    throttled rarely, however long its bursts are then.
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
    use = tracker.use.cpus
    present = [cgroup for cgroup in workload_index.best_effort if cgroup in use]
    return bool(present) and all(cgroup in blocked for cgroup in present)
