# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Input of the eviction policy: cases of the channels, candidates of a case, later deviations."""

from collections.abc import Iterable

from controller.core.control.channel_loops import ChannelLoops
from controller.core.control.cpu_channel import CpuChannel
from controller.core.control.eviction_policy import Candidate, Case
from controller.core.control.ladder import TickContext
from controller.core.control.ladder_channel import LadderChannel
from controller.core.decision import IndicatorStatus
from controller.core.model import Channel, IndicatorName

__all__ = ("eviction_candidates", "eviction_cases", "known_deviation")

# From this demand on every knob of a channel counts as at its strictest setting.
_AT_STOP = 0.99


def eviction_cases(
    cpu: CpuChannel, ladders: Iterable[LadderChannel], context: TickContext
) -> list[Case]:
    """Return one case for every channel that protects a service."""
    cases = []
    for loops in (cpu.loops, *(each.loops for each in ladders)):
        loop = loops.selected
        service = None if loop is None else context.workload_index.services.get(loop.service)
        if loop is None or service is None:
            continue
        at_stop = loops.demand.applied >= _AT_STOP
        cases.append(
            Case(
                channel=loop.channel,
                service=service.name,
                indicator=loop.indicator,
                at_stop=at_stop,
                deviation=loop.filtered_deviation,
                # Needed only at the stop; the computation reads the use of every workload.
                be_share=_share(loops, service.name, context) if at_stop else None,
                be_share_min=service.profile.be_share_min,
                enabled=service.profile.evict_enabled,
                after_ns=service.profile.evict_after_ns,
            )
        )
    return cases


def eviction_candidates(case: Case, cpu: CpuChannel, context: TickContext) -> list[Candidate]:
    """Return the workloads that may be evicted for *case*, each with its blame."""
    # The blame is divided among all best-effort workloads, also those that may not be evicted.
    best_effort = context.workload_index.best_effort
    if case.channel is Channel.CPU:
        culprits = cpu.blame_for(case.service, context.tracker.blame)
        blame = {cgroup: culprits.get(cgroup, 0.0) for cgroup in best_effort}
    else:
        wants = context.usage.of(case.channel).wants
        blame = {cgroup: wants.get(cgroup, 0.0) for cgroup in best_effort}
    share = (case.be_share or 0.0) / (sum(blame.values()) or 1.0)
    return [
        Candidate(
            cgroup=cgroup,
            name=workload.name,
            blame=blame[cgroup],
            share=share * blame[cgroup],
            priority=workload.priority,
            size=context.tracker.cpu_use.get(cgroup, 0.0),
        )
        for cgroup, workload in best_effort.items()
        if workload.evictable
    ]


def known_deviation(
    channels: Iterable[ChannelLoops], service: str, indicator: IndicatorName
) -> float | None:
    """Return the filtered deviation of a service's indicator, on whatever channel it is now.

    ``None`` where this tick has no value: the service left, is idle, or has no data.
    """
    for loops in channels:
        for loop in loops.reports:
            if (loop.service, loop.indicator) == (service, indicator):
                fresh = loop.status is IndicatorStatus.FRESH and loop.deviation is not None
                return loop.filtered_deviation if fresh else None
    return None


def _share(loops: ChannelLoops, service: str, context: TickContext) -> float | None:
    if loops.demand.channel is Channel.CPU:
        return context.tracker.blame.share(service)
    return context.usage.share(loops.demand.channel, context.tracker, context.workload_index)
