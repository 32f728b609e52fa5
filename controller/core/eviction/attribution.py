# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Names for all that hurts a service: best-effort work, other workloads, what is outside, the host.

On the cpu channel a part is that of the wait that others and the host inflict, but at least of a
quarter of all waiting, as best-effort's share is; the rest is the service's own. On the other
channels it is the part of the use of the resource.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest

from controller.core.channels.ladder import TickContext
from controller.core.decision import Culprit, Part, PartKind
from controller.core.indicators.blame import INFLICTED_MIN
from controller.core.indicators.wait_parts import Who
from controller.core.model import CgroupId, Channel

__all__ = ("REST", "parts_of")

# So many are named; what is smaller than this part is not.
_NAMED = 6
_LEAST = 0.01
# Processes and threads that are in no cgroup of their own.
REST = "/ (kernel threads, processes in no other cgroup)"


def parts_of(
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
    return tuple(each for each in named if each.share >= _LEAST)


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
