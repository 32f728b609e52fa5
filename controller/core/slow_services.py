# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Why each service that suffers is slow: one verdict from the evidence of all channels.

A channel knows the cause of its own indicators. A service's own figure shows only that the service
is slow, so here all channels are compared with it. "Not on this node" is a verdict too: it ends a
search. Nothing is controlled by the verdicts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from controller.core.channels.channels import Channels
from controller.core.channels.ladder import TickContext
from controller.core.decision import (
    Cause,
    ChannelState,
    LoopReport,
    Part,
    PartKind,
    SlowBecause,
    SlowService,
    Verdict,
    describe_slow,
)
from controller.core.eviction.causes import cause_of, depth, suffers
from controller.core.loop.evidence import (
    Evidence,
    host_explains,
    steal_explains,
    throttled_explains,
)
from controller.core.model import Channel, IndicatorName
from controller.core.units import NS_PER_SEC, format_cpus

__all__ = ("SlowServices",)

# A verdict is logged when it has been the same for this time, and again only when it changes, or
# when the service was well for twenty times as long.
_STEADY_NS = 3 * NS_PER_SEC
# Below this part of the time in which a service wants to run, its waits explain no slow request. As
# much more load than ever while a service was well explains them, and a part is named from there.
_LITTLE = 0.1

_OF_PART = {
    PartKind.BEST_EFFORT: SlowBecause.BEST_EFFORT,
    PartKind.SERVICE: SlowBecause.SERVICE,
    PartKind.SYSTEM: SlowBecause.OTHER_WORK,
    PartKind.PAUSED: SlowBecause.OTHER_WORK,
    PartKind.OUTSIDE: SlowBecause.OTHER_WORK,
    PartKind.HOST: SlowBecause.HOST,
    PartKind.SELF: SlowBecause.OWN_TASKS,
    PartKind.UNKNOWN: SlowBecause.UNKNOWN,
}
_WHAT = {
    Channel.CPU: "its waits for a CPU",
    Channel.CACHE: "the memory traffic",
    Channel.NETWORK: "the network traffic",
    Channel.MEMORY: "the memory in use",
    Channel.IO: "the work of its disk",
}
_BY_ITSELF = {
    Channel.CACHE: SlowBecause.OWN_TASKS,
    Channel.NETWORK: SlowBecause.LINK,
    Channel.MEMORY: SlowBecause.OWN_TASKS,
    Channel.IO: SlowBecause.DISK,
}


class _Hurt(NamedTuple):
    """The worst loop of a service that suffers on a channel, and the cause there."""

    loop: LoopReport
    cause: Cause


class _Found(NamedTuple):
    """A verdict without its service, see ``SlowService``."""

    because: SlowBecause
    name: str = ""
    share: float | None = None
    evidence: str = ""


@dataclass(slots=True)
class _Well:
    """The largest use of CPUs of a service that was well for at least a period of 10 s after it.

    ``newer`` and ``older`` are the largest of this period and the one before: the load rises a
    moment before the service suffers from it. ``known_s`` is how long it was well.
    """

    cpus: float = 0.0
    older: float = 0.0
    newer: float = 0.0
    known_s: int = 0

    def add(self, cpus: float) -> None:
        """Take a second in which the service was well."""
        self.newer = max(self.newer, cpus)
        self.known_s += 1
        if self.known_s % 10 == 0:
            self.cpus = max(self.cpus, self.older)
            self.older, self.newer = self.newer, 0.0

    def drop(self) -> None:
        """Take a second in which it was not."""
        self.older = self.newer = 0.0


@dataclass(slots=True)
class _Logged:
    """The verdict that was logged last, and the one since ``since_ns``; ``seen_ns`` is the last."""

    logged: tuple[SlowBecause, str] | None
    now: tuple[SlowBecause, str]
    since_ns: int
    seen_ns: int


class SlowServices:
    """The verdicts of the last tick, ``found``, and what of them is new, ``verdicts``."""

    __slots__ = ("_logged", "_second", "_well", "found", "verdicts")

    def __init__(self) -> None:
        self._second = -1
        self._logged: dict[str, _Logged] = {}
        self._well: dict[str, _Well] = {}
        self.found: tuple[SlowService, ...] = ()
        self.verdicts: tuple[Verdict, ...] = ()

    def update(self, channels: Channels, causes: Iterable[Cause], context: TickContext) -> None:
        """Judge those services of *causes* that suffer: up to three on each channel."""
        hurt: dict[str, list[_Hurt]] = {}
        for cause in causes:
            reports = channels.loops[cause.channel].of(cause.service).reports
            bad = [each for each in reports if suffers(each)]
            if bad:
                worst = max(bad, key=lambda each: depth(each) or 0.0)
                hurt.setdefault(cause.service, []).append(_Hurt(worst, cause))
        self._learn_loads(channels, context)
        self.found = tuple(
            self._judge(service, found, channels, context) for service, found in hurt.items()
        )
        self.verdicts = tuple(self._log_lines(context.now_ns))

    def _learn_loads(self, channels: Channels, context: TickContext) -> None:
        """Take the use of CPUs of each service, once a second."""
        # Ticks may come a second apart, and some of them a moment earlier.
        second = context.now_ns // NS_PER_SEC
        if second == self._second:
            return
        self._second = second
        bad = {name for loops in channels.loops.values() for name in loops.suffering}
        services = context.workload_index.services
        self._well = {name: each for name, each in self._well.items() if name in services}
        for name, need in context.tracker.cpu_need.items():
            well = self._well.setdefault(name, _Well())
            if name in bad:
                well.drop()
            else:
                well.add(need.oncpu)

    def _judge(
        self, service: str, hurt: Sequence[_Hurt], channels: Channels, context: TickContext
    ) -> SlowService:
        known = context.workload_index.services[service]
        waits = channels.cpu.evidence(known, known.profile.indicators[0], context.tracker)
        others = [each for each in hurt if each.loop.indicator is not IndicatorName.SERVICE]
        found = _by_own_limit(service, channels, waits)
        if found is None and others:
            worst = max(others, key=lambda each: depth(each.loop) or 0.0)
            found = _by_channel(worst.cause, channels, waits, context)
        elif found is None:
            found = _by_figure(hurt[0].cause, channels, waits, context)
        because, name, share, evidence = found
        well, need = self._well.get(service), context.tracker.cpu_need.get(service)
        may_be_load = because in (SlowBecause.OWN_TASKS, SlowBecause.ELSEWHERE)
        if may_be_load and well and well.cpus and need and need.oncpu > (1 + _LITTLE) * well.cpus:
            because = SlowBecause.OWN_LOAD
            used, most = format_cpus(need.oncpu), format_cpus(well.cpus)
            evidence = f"it uses {used}, at most {most} while it was well; {evidence}"
        return SlowService(
            service=service, because=because, name=name, share=share, evidence=evidence
        )

    def _log_lines(self, now_ns: int) -> Iterable[Verdict]:
        for each in self.found:
            verdict = each.because, each.name
            state = self._logged.get(each.service)
            if state is None:
                state = self._logged[each.service] = _Logged(None, verdict, now_ns, now_ns)
            if verdict != state.now or now_ns - state.seen_ns >= _STEADY_NS:
                state.now, state.since_ns = verdict, now_ns
            state.seen_ns = now_ns
            if verdict != state.logged and now_ns - state.since_ns >= _STEADY_NS:
                state.logged = verdict
                text = describe_slow(each.because, each.name, each.evidence)
                yield Verdict(subject=each.service, text=text)
        for service, state in list(self._logged.items()):
            if now_ns - state.seen_ns >= 20 * _STEADY_NS:
                del self._logged[service]


def _by_own_limit(service: str, channels: Channels, waits: Evidence) -> _Found | None:
    if channels.loops[Channel.MEMORY].of(service).state is ChannelState.SELF:
        return _Found(SlowBecause.OWN_MEMORY, evidence="it reached its own limit of memory")
    if throttled_explains(waits):
        ratio = waits.throttled_ratio or 0.0
        text = f"it was throttled for {ratio:.0%} of its time"
        return _Found(SlowBecause.OWN_QUOTA, share=min(1.0, ratio), evidence=text)
    return None


def _by_channel(cause: Cause, channels: Channels, waits: Evidence, context: TickContext) -> _Found:
    """Judge by *cause*, that of the channel whose indicator is worst."""
    loops = channels.loops[cause.channel].of(cause.service)
    if loops.waits_for_host and _host_is_most(cause.service, waits, context):
        return _by_host(waits)
    return _by_parts(cause, loops.state is ChannelState.SQUEEZE)


def _by_figure(cause: Cause, channels: Channels, waits: Evidence, context: TickContext) -> _Found:
    """Judge a service of which only its own figure is above the sweet point."""
    if context.harm.certain(cause.service) and cause.be_share:
        batch = (each for each in cause.parts if each.kind is PartKind.BEST_EFFORT)
        return _by_parts(replace(cause, parts=tuple(batch)))
    # Stolen time makes each request longer, also where no task waits for a CPU.
    is_host = host_explains(waits) or steal_explains(waits)
    if is_host and _host_is_most(cause.service, waits, context):
        return _by_host(waits)
    need = context.tracker.cpu_need.get(cause.service)
    wanted = waits.inflicted_cpus + (need.oncpu if need else 0.0)
    if wanted > 0 and waits.inflicted_cpus >= _LITTLE * wanted:
        return _by_parts(cause_of(channels.cpu.loops, cause.service, context))
    own = channels.loops[cause.channel].of(cause.service)
    if own.state is ChannelState.SQUEEZE and not own.was_in_vain:
        return _Found(SlowBecause.UNKNOWN, evidence="best-effort work is squeezed to find out")
    text = f"its tasks wait for {format_cpus(waits.inflicted_cpus)}"
    if waits.throttled_ratio is not None:
        text += f" and are throttled for {waits.throttled_ratio:.0%} of their time"
    return _Found(SlowBecause.ELSEWHERE, evidence=text)


def _host_is_most(service: str, waits: Evidence, context: TickContext) -> bool:
    """Return whether the host took more than *service* waited for its own tasks.

    The host is compared with the waits for other work before. A service with more tasks than CPUs
    hardly waits for others, and a little of stolen time would explain all of it.
    """
    own_cpus = context.tracker.blame.parts.of(service).get(PartKind.SELF, 0.0)
    return _lost_cpus(waits) >= own_cpus


def _lost_cpus(waits: Evidence) -> float:
    return waits.host_cpus + (waits.steal_cpus or 0.0)


def _by_host(waits: Evidence) -> _Found:
    text = f"CPUs stood still or were taken for {format_cpus(_lost_cpus(waits))}"
    return _Found(SlowBecause.HOST, evidence=text)


def _by_parts(cause: Cause, is_squeezed: bool = False) -> _Found:
    """Judge by the kind with the largest part, and name its largest member.

    :param is_squeezed: best-effort work has enough of the channel's resource to be squeezed for
        the service: with the largest part it is the cause, also with less than half.
    """
    sums: dict[SlowBecause, float] = {}
    largest: dict[SlowBecause, Part] = {}
    for part in cause.parts:
        because = _OF_PART[part.kind]
        sums[because] = sums.get(because, 0.0) + part.share
        if because not in largest or part.share > largest[because].share:
            largest[because] = part
    order = sorted(sums, key=sums.__getitem__, reverse=True)
    what = _WHAT[cause.channel]
    is_cause = is_squeezed and order and order[0] is SlowBecause.BEST_EFFORT
    # Where no other workload has half, the resource or the service itself is the cause.
    is_most = order and sums[order[0]] >= 0.5
    if cause.channel in _BY_ITSELF and not (is_cause or is_most):
        return _Found(_BY_ITSELF[cause.channel], evidence=f"no other workload has most of {what}")
    if not order:
        return _Found(SlowBecause.UNKNOWN, evidence=f"nothing is known about {what}")
    share = min(1.0, sums[order[0]])
    text = f"{share:.0%} of {what}"
    if len(order) > 1 and sums[order[1]] >= _LITTLE:
        text += f"; {order[1]} {sums[order[1]]:.0%}"
    return _Found(order[0], largest[order[0]].name, share, text)
