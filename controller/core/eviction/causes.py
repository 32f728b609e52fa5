# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a service suffers, and what hurts it: best-effort work, other workloads, the host.

The eviction policy gets its input from here: the cases of the channels, the candidates of a case,
and later deviations. All other causes are named for people only. On the cpu channel a part is that
of the wait that others and the host inflict, but at least of a quarter of all waiting, as
best-effort's share is; the rest is the service's own. On the other channels it is the part of the
use of the resource.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest

from controller.core.channels.cpu_channel import CpuChannel
from controller.core.channels.ladder import AT_STOP, TickContext
from controller.core.channels.ladder_channel import LadderChannel
from controller.core.decision import Cause, Culprit, IndicatorStatus, LoopReport, Part, PartKind
from controller.core.eviction.budget import Candidate
from controller.core.eviction.policy import Case
from controller.core.harm.harm_finder import HarmFinder
from controller.core.indicators.blame import INFLICTED_MIN, Who
from controller.core.loop.channel_loops import ChannelLoops
from controller.core.loop.pid import HIGHEST
from controller.core.model import CgroupId, Channel, IndicatorName
from controller.core.settings import DEAD_ZONE

__all__ = (
    "REST",
    "cause_of",
    "causes",
    "depth",
    "eviction_candidates",
    "eviction_cases",
    "known_deviation",
    "raw_deviation",
    "suffers",
)

# So many culprits and parts are named.
_NAMED = 6
# Processes and threads that are in no cgroup of their own.
REST = "/ (kernel threads, processes in no other cgroup)"


def suffers(loop: LoopReport) -> bool:
    """Return whether the service of *loop* is above its sweet point, beyond the dead zone."""
    deviation = loop.filtered_deviation
    return deviation is not None and deviation >= DEAD_ZONE and loop.status is IndicatorStatus.FRESH


def depth(loop: LoopReport) -> float | None:
    """Return the filtered deviation of *loop*; beyond the end of its scale, the raw deviation."""
    filtered = loop.filtered_deviation
    if filtered is None or filtered < 0.99 * HIGHEST:
        return filtered
    raw = raw_deviation(loop)
    return filtered if raw is None else max(filtered, raw)


def raw_deviation(loop: LoopReport) -> float | None:
    """Return the deviation without limits; of a recording without it, with them."""
    return loop.deviation if loop.excess is None else loop.excess


def eviction_cases(
    cpu: CpuChannel, ladders: Iterable[LadderChannel], context: TickContext
) -> list[Case]:
    """Return one case for every channel that protects a service."""
    cases = []
    for loops in (cpu.loops, *(each.loops for each in ladders)):
        loop = loops.selected
        service = None if loop is None else context.workload_index.services.get(loop.service)
        if loop is None or service is None or service.paused:
            continue
        at_stop = loops.demand.applied >= AT_STOP
        cases.append(
            Case(
                channel=loop.channel,
                service=service.name,
                indicator=loop.indicator,
                at_stop=at_stop,
                deviation=loop.filtered_deviation,
                # Needed only at the stop; the computation reads the use of every workload.
                be_share=_share_at_stop(loops, service.name, context) if at_stop else None,
                be_share_min=service.profile.be_share_min,
                enabled=service.profile.evict_enabled,
                after_ns=service.profile.evict_after_ns,
            )
        )
    return cases


def eviction_candidates(case: Case, context: TickContext) -> list[Candidate]:
    """Return the workloads that may be evicted for *case*, each with its blame.

    A pod whose containers are workloads is one candidate.
    """
    # The blame is divided among all best-effort workloads, also those that may not be evicted.
    best_effort = context.workload_index.best_effort
    blame = _blame(case.channel, case.service, context)
    share = (case.be_share or 0.0) / (sum(blame.values()) or 1.0)
    candidates: dict[CgroupId, Candidate] = {}
    for cgroup, workload in best_effort.items():
        if workload.evictable:
            whole = workload.whole
            candidate = Candidate(
                cgroup=whole,
                name=workload.whole_name,
                blame=blame.get(cgroup, 0.0),
                share=share * blame.get(cgroup, 0.0),
                priority=workload.priority,
                size=context.tracker.use.cpus.get(cgroup, 0.0),
            )
            other = candidates.get(whole)
            candidates[whole] = candidate if other is None else _sum(candidate, other)
    return list(candidates.values())


def causes(channels: Iterable[ChannelLoops], context: TickContext) -> tuple[Cause, ...]:
    """Return what hurts the services for which a channel squeezes, and those that suffer most."""
    return tuple(cause_of(loops, each, context) for loops in channels for each in _hurt(loops))


def cause_of(loops: ChannelLoops, service: str, context: TickContext) -> Cause:
    """Return what hurts *service* on the channel of *loops*."""
    channel = loops.demand.channel
    be_share = _share(loops, service, context)
    blame = _blame(channel, service, context)
    part = (be_share or 0.0) / (sum(blame.values()) or 1.0)
    largest = nlargest(_NAMED, blame, key=blame.__getitem__)
    culprits = tuple(Culprit(each, part * blame[each]) for each in largest if blame[each])
    parts = _parts(channel, service, be_share, culprits, context)
    return Cause(
        channel=channel, service=service, be_share=be_share, culprits=culprits, parts=parts
    )


def _hurt(loops: ChannelLoops) -> list[str]:
    """Return the service for which the channel decides, and those that suffer most."""
    selected = loops.selected
    found: dict[str, None] = {}
    if selected is not None:
        # The filtered deviation follows the one of this tick, on which the first decision rests.
        worst = max(selected.filtered_deviation or 0.0, selected.deviation or 0.0)
        if loops.demand.applied > 0 or worst > 0:
            found[selected.service] = None
    bad = [each for each in loops.reports if suffers(each)]
    for loop in nlargest(3, bad, key=lambda each: each.filtered_deviation or 0.0):
        found[loop.service] = None
    return list(found)


def _share_at_stop(loops: ChannelLoops, service: str, context: TickContext) -> float | None:
    """Return the share that an eviction rests on; it ends the use under the squeeze."""
    if loops.demand.channel is not Channel.CACHE:
        return _share(loops, service, context)
    if context.harm.certain(service):
        return _share_of_harm(context.harm, loops, service, context.tracker.use.cpus)
    share = _share(loops, service, context)
    present = context.usage.of(Channel.CACHE).present_share
    return share if share is None or present is None else min(share, present)


def _blame(channel: Channel, service: str, context: TickContext) -> Mapping[CgroupId, float]:
    """Return the contributions of best-effort workloads, in the unit of ``Eviction.blame``."""
    best_effort = context.workload_index.best_effort
    if channel is Channel.CPU:
        culprits = context.tracker.blame.blame_for(service)
        return {cgroup: wait for cgroup, wait in culprits.items() if cgroup in best_effort}
    if channel is Channel.CACHE:
        certain = context.harm.certain(service)
        if certain:
            return {cgroup: harm for cgroup, harm in certain.items() if cgroup in best_effort}
    wants = context.usage.of(channel).wants
    return {cgroup: wants[cgroup] for cgroup in best_effort if cgroup in wants}


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


def _sum(one: Candidate, other: Candidate) -> Candidate:
    return one._replace(
        blame=one.blame + other.blame, share=one.share + other.share, size=one.size + other.size
    )


def _share(loops: ChannelLoops, service: str, context: TickContext) -> float | None:
    """Return best-effort's part of what hurts *service* now; ``None``: unknown, or nothing does."""
    harm = context.harm
    if loops.demand.channel is Channel.CACHE and harm.certain(service):
        return _share_of_harm(harm, loops, service)
    if loops.demand.channel is Channel.CPU:
        return context.tracker.blame.share(service)
    spec = loops.of(service).spec
    if loops.demand.channel is Channel.IO and spec is not None:
        waits = context.tracker.counted.disk_share(context.workload_index.services[service], spec)
        if waits is not None:
            return waits
    return context.usage.share(loops.demand.channel, context.tracker, context.workload_index)


def _share_of_harm(
    harm: HarmFinder, loops: ChannelLoops, service: str, use: Mapping[CgroupId, float] | None = None
) -> float | None:
    """Return the part of certain harm in what hurts *service*, see ``HarmFinder.share``."""
    excess = loops.of(service).log_excess(filtered=True)
    # At the sweet point or below it, or without data, there is nothing of which it is a part.
    return harm.share(service, excess, use) if excess is not None and excess > 0 else None


def _parts(
    channel: Channel,
    service: str,
    be_share: float | None,
    culprits: Sequence[Culprit],
    context: TickContext,
) -> tuple[Part, ...]:
    """Return the largest parts of what hurts *service*, the largest first."""
    if channel is Channel.CPU:
        found = _of_wait(service, be_share, culprits, context)
    else:
        found = _of_use(channel, service, be_share, culprits, context)
    named = nlargest(_NAMED, found, key=lambda each: each.share)
    return tuple(each for each in named if each.share >= 0.01)


def _of_wait(
    service: str, be_share: float | None, culprits: Sequence[Culprit], context: TickContext
) -> list[Part]:
    blame = context.tracker.blame
    best_effort = context.workload_index.best_effort
    others: dict[Who, float] = {}
    for who, cpus in blame.parts.of(service).items():
        # What was of another class a moment ago is not in best-effort's share.
        known = PartKind.UNKNOWN if who in best_effort else who
        others[known] = others.get(known, 0.0) + cpus
    batch_cpus = blame.inflicted(service)
    own = others.pop(PartKind.SELF, 0.0)
    inflicted = batch_cpus + sum(others.values())
    whole = max(inflicted, INFLICTED_MIN * (inflicted + own))
    if whole <= 0:
        return []
    # The culprits are known over 30 s, how much they inflict over as short a time as the rest.
    scale = batch_cpus / whole / be_share if be_share else 0.0
    found = [_named(each.cgroup, scale * each.share, context) for each in culprits]
    for who, cpus in others.items():
        if isinstance(who, PartKind):
            name = REST if who is PartKind.OUTSIDE else ""
            found.append(Part(who, name, cpus / whole))
        else:
            found.append(_named(who, cpus / whole, context))
    found.append(Part(PartKind.SELF, "", 1.0 - inflicted / whole))
    return _together(found)


def _of_use(
    channel: Channel,
    service: str,
    be_share: float | None,
    culprits: Sequence[Culprit],
    context: TickContext,
) -> list[Part]:
    found = [_named(each.cgroup, each.share, context) for each in culprits]
    if be_share is None:
        return found
    if be_share and not culprits:  # the waits for a disk on v1, which does not count its bytes
        found.append(Part(PartKind.BEST_EFFORT, "", be_share))
    index = context.workload_index
    users: Mapping[CgroupId, float] = {
        cgroup: rate
        for cgroup, rate in context.usage.of(channel).other_rates.items()
        if isinstance(cgroup, CgroupId) and index.sensitive.get(cgroup) != service
    }
    used = context.usage.of(channel).others
    if used > 0:
        rest = (1.0 - be_share) / used
        found += [_named(cgroup, rate * rest, context) for cgroup, rate in users.items()]
    return _together(found)


def _named(cgroup: CgroupId, share: float, context: TickContext) -> Part:
    index = context.workload_index
    if (batch := index.best_effort.get(cgroup)) is not None:
        return Part(PartKind.BEST_EFFORT, batch.name, share)
    if (service := index.sensitive.get(cgroup)) is not None:
        return Part(PartKind.SERVICE, service, share)
    if (system := index.system.get(cgroup)) is not None:
        kind = PartKind.PAUSED if cgroup in index.paused else PartKind.SYSTEM
        return Part(kind, system.name, share)
    path = context.tracker.outside.get(cgroup)
    return Part(PartKind.OUTSIDE, path or f"cgroup {cgroup.id}", share)


def _together(parts: Iterable[Part]) -> list[Part]:
    """Return *parts* with those of the same name as one, such as the workloads of a service."""
    shares: dict[tuple[PartKind, str], float] = {}
    for each in parts:
        key = each.kind, each.name
        shares[key] = shares.get(key, 0.0) + each.share
    return [Part(kind, name, round(share, 4)) for (kind, name), share in shares.items()]
