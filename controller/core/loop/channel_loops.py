# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""All loops of one channel: which indicators they have, and which of them decides."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from controller.core.decision import ChannelState, Demand, Indicator, LoopReport, OffLoop, Verdict
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.loop.evidence import Evidence
from controller.core.loop.pid import LOWEST
from controller.core.loop.service_loops import Bid, ServiceLoops, worst
from controller.core.model import Channel, IndicatorName
from controller.core.settings import DEAD_ZONE, IndicatorSpec, Profile, Settings
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import Service, WorkloadIndex

__all__ = ("ChannelLoops", "IndicatorRouting", "Specs", "choose")

# The indicators of a channel by service. A service without any is left out.
Specs = Mapping[str, tuple[IndicatorSpec, ...]]

# So often another channel may be chosen for the own figure of a service.
_REASSIGN_NS = 10 * NS_PER_SEC

# A service suffers, and no squeeze of best-effort work is for it.
_RULED_OUT = frozenset(
    {ChannelState.SELF, ChannelState.STEAL, ChannelState.NOT_BE, ChannelState.PAUSED}
)

# The loops of a service that is not present: nothing is known of it, and nothing is asked.
_NONE = ServiceLoops("", Channel.CPU)


def choose(channel: Channel, bids: Iterable[Bid]) -> Demand:
    """Return the largest demand of the *bids*; without one, the inhibited bid that deviates most.

    ``applied`` is not known yet.
    """
    act: list[Bid] = []
    inhibited: list[Bid] = []
    for bid in bids:
        acts = bid.state in (ChannelState.SQUEEZE, ChannelState.FREE)
        (act if acts else inhibited).append(bid)
    winner = max(act, key=lambda bid: bid.demand, default=None)
    wanted = min(1.0, max(0.0, winner.demand)) if winner else 0.0
    state = ChannelState.SQUEEZE if wanted > 0 else ChannelState.FREE
    if inhibited and wanted <= 0:
        winner = max(inhibited, key=lambda bid: bid.deviation)
        state = winner.state
    return Demand(
        channel=channel,
        wanted=wanted,
        applied=0.0,
        state=state,
        service=winner.service if winner else None,
        indicator=winner.indicator if winner else None,
    )


@dataclass(slots=True)
class ChannelLoops:
    """The loops of all services on one channel; true if there is any service.

    In each tick ``bid`` advances the loops and returns the selected demand, and ``track`` feeds the
    applied demand back. Valid after ``track``: ``demand``, ``reports``, ``off`` and ``indicators``
    for the plan, ``selected`` (the report of the loop that decided), ``working`` (at least one loop
    has a source) and ``safe`` (all loops with a source have been without data for too long).
    """

    channel: Channel
    settings: Settings
    working: bool = False
    safe: bool = False
    demand: Demand = field(init=False)
    reports: tuple[LoopReport, ...] = ()
    off: tuple[OffLoop, ...] = ()
    indicators: tuple[Indicator, ...] = ()
    selected: LoopReport | None = None
    _services: dict[str, ServiceLoops] = field(default_factory=dict)
    _specs: Specs | None = None

    def __post_init__(self) -> None:
        self.demand = choose(self.channel, ())

    def __bool__(self) -> bool:
        """Whether there is a service to protect on this channel."""
        return bool(self._services)

    def reconfigure(self, settings: Settings) -> None:
        """Take new settings; loops keep their demand."""
        self.settings = settings
        if not settings.law.verify_squeeze:
            for loops in self._services.values():
                loops.end_trial()

    @property
    def charges(self) -> dict[str, float]:
        """How much, above 0 and up to 1, the squeeze is for each service."""
        return {name: each.charge for name, each in self._services.items() if each.charge > 0}

    @property
    def suffering(self) -> list[str]:
        """The services that suffer, whatever the cause, and those that the squeeze is for."""
        well = (ChannelState.FREE, ChannelState.PAUSED)
        return [
            name
            for name, each in self._services.items()
            if each.charge > 0 or each.state not in well
        ]

    @property
    def excess(self) -> float | None:
        """The largest deviation, without limits, of the services that ask for the squeeze.

        Of all services if none asks; ``None`` if none is known. Without a service that best-effort
        work hurts it is the lowest of the scale, however much services suffer.
        """
        services = [each for each in self._services.values() if each.may_act]
        if not services and self._services:
            return LOWEST
        asking = [each for each in services if each.charge > 0] or services
        return worst(each.excess for each in asking)

    @property
    def unmet(self) -> float | None:
        """The largest deviation of this tick, without limits, of services that ask for the squeeze.

        ``None`` if none asks, or none of them has data or one that a squeeze can end.
        """
        asking = (each for each in self._services.values() if each.may_act and each.charge > 0)
        return worst(each.unmet for each in asking)

    @property
    def most(self) -> float | None:
        """The largest demand of use, if trials showed it for all services that suffer."""
        services = self._services.values()
        if any(each.charge > 0 for each in services):
            return None
        return worst(each.most for each in services)

    @property
    def is_ruled_out(self) -> bool:
        """Whether services suffer for another cause or are paused, and no other needs limits."""
        return self.rules_out(self.demand)

    def rules_out(self, choice: Demand) -> bool:
        """Return whether *choice* is for another cause, and no squeeze is for another service."""
        return choice.state in _RULED_OUT and not any(
            each.may_act and each.charge > 0 for each in self._services.values()
        )

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The results of the trials that ended in this tick."""
        found = (each.verdict for each in self._services.values())
        return tuple(each for each in found if each is not None)

    def worst_deviation(self, service: str, without: IndicatorName | None = None) -> float | None:
        """Return the largest filtered deviation of a service; ``None`` if none is known.

        The indicator *without* is left out.
        """
        known = self.of(service).deviations
        return worst(each for name, each in known.items() if name is not without)

    def of(self, service: str | None) -> ServiceLoops:
        """Return the loops of *service*; without any, those of a service that is not present."""
        return _NONE if service is None else self._services.get(service, _NONE)

    def bid(
        self,
        tracker: IndicatorTracker,
        workload_index: WorkloadIndex,
        specs: Specs,
        evidence: Callable[[Service, IndicatorSpec], Evidence],
        applied: float,
        dt_s: float,
        hold: bool,
    ) -> Demand:
        """Advance all loops by *dt_s* and return the selected demand; *applied* is the present one.

        On *hold* (the first tick, or one after a gap) no loop moves. *evidence* is called with the
        first of a service's *specs*.
        """
        self._set_specs(specs, applied)
        services = workload_index.services
        return choose(
            self.channel,
            chain.from_iterable(
                loops.bid(services[name], tracker, evidence, self.settings, applied, dt_s, hold)
                for name, loops in self._services.items()
            ),
        )

    def is_needed(self, workload_index: WorkloadIndex) -> bool:
        """Return whether a service that is not paused is near its sweet point or exceeds it."""
        deviations = (
            self.worst_deviation(name)
            for name, service in workload_index.services.items()
            if not service.paused
        )
        return any(each is not None and each > -DEAD_ZONE for each in deviations)

    def shift(self, by: float) -> None:
        """Add *by* to the demand of every loop: the scale changed, or the demand was set."""
        for loops in self._services.values():
            loops.shift(by)

    def track(self, choice: Demand, applied: float, dt_s: float) -> None:
        """Let every loop, selected or not, track the *applied* demand; make the reports."""
        for loops in self._services.values():
            loops.track(choice, applied, dt_s)
        self._report(choice, applied)

    def _set_specs(self, specs: Specs, applied: float) -> None:
        """Keep, create and remove loops so that there is one for each of *specs*."""
        if specs is self._specs:
            return
        self._specs = specs
        before, self._services = self._services, {}
        for service, each in specs.items():
            loops = before.get(service) or ServiceLoops(service, self.channel)
            loops.set_specs(each, applied)
            self._services[service] = loops

    def _report(self, choice: Demand, applied: float) -> None:
        services = self._services.values()
        states = set(chain.from_iterable(loops.states for loops in services))
        self.working = bool(states)
        self.safe = states == {ChannelState.SAFE}
        state = choice.state
        if self.safe:
            state = ChannelState.SAFE
        elif states and ChannelState.FREE not in states:
            state = ChannelState.HOLD
        elif state is ChannelState.FREE and applied > 0:
            state = ChannelState.SQUEEZE
        self.demand = replace(choice, applied=applied, state=state)
        self.indicators = tuple(chain.from_iterable(loops.indicators for loops in services))
        self.off = tuple(chain.from_iterable(loops.off for loops in services))
        self.reports = tuple(chain.from_iterable(loops.reports for loops in services))
        self.selected = next((each for each in self.reports if each.selected), None)


@dataclass(slots=True)
class IndicatorRouting:
    """The indicators of each channel; keeps the channel of each service's own figure.

    The profile gives the channel of an indicator. The exception is the service's own figure (its
    request latency, for instance), which shows that the service suffers, but not on which resource.
    While it is above its sweet point it is assigned, every 10 s, to the channel whose other
    indicators deviate most. Without such an indicator, or if all of them are at the bottom of the
    scale, it is on the cache channel: there any harm can be found, also that of waits for a CPU,
    and the last knob is the quota. Below the sweet point the assignment stays.
    """

    _workload_index: WorkloadIndex | None = None
    # The channel of a service's own figure, and since when.
    _assigned: dict[str, tuple[Channel, int]] = field(default_factory=dict)
    _specs: dict[Channel, Specs] = field(default_factory=dict)

    def update(
        self, workload_index: WorkloadIndex, loops: Mapping[Channel, ChannelLoops], now_ns: int
    ) -> Mapping[Channel, Specs]:
        """Return the indicators of every channel by service; *loops* are those of the last tick.

        The result is the same object until it changes.
        """
        services = workload_index.services
        changed = workload_index is not self._workload_index
        if changed:
            self._workload_index = workload_index
            self._assigned = {
                name: self._assign(service)
                for name, service in services.items()
                if any(spec.name is IndicatorName.SERVICE for spec in service.profile.indicators)
            }
        for name, (channel, since_ns) in self._assigned.items():
            hurting = (loops[channel].of(name).deviations.get(IndicatorName.SERVICE) or 0.0) > 0
            if hurting and now_ns - since_ns >= _REASSIGN_NS:
                best = _most_deviating(services[name], loops)
                changed = changed or best is not channel
                self._assigned[name] = best, now_ns
        if changed:
            self._specs = {channel: self._of(channel, workload_index) for channel in Channel}
        return self._specs

    def _assign(self, service: Service) -> tuple[Channel, int]:
        """Return the channel of before unless the profile no longer has it."""
        before = self._assigned.get(service.name)
        if before is not None and before[0] in service.profile.channels:
            return before
        return _default(service), -_REASSIGN_NS

    def _of(self, channel: Channel, workload_index: WorkloadIndex) -> Specs:
        # Hundreds of services share a few profiles, and so the tuples.
        # By identity, because learned profiles have the name of the one that they are made from.
        by_profile: dict[tuple[int, Channel | None], tuple[IndicatorSpec, ...]] = {}
        found = {}
        for name, service in workload_index.services.items():
            own, _ = self._assigned.get(name, (None, 0))
            key = (id(service.profile), own)
            if key not in by_profile:
                by_profile[key] = _specs_of(service.profile, channel, own)
            if specs := by_profile[key]:
                found[name] = specs
        return found


def _specs_of(profile: Profile, channel: Channel, own: Channel | None) -> tuple[IndicatorSpec, ...]:
    """Return the indicators on *channel*; the service's own figure is on *own*."""
    if channel not in profile.channels:
        return ()
    return tuple(
        spec
        for spec in profile.indicators
        if (own if spec.name is IndicatorName.SERVICE else spec.channel) is channel
    )


def _default(service: Service) -> Channel:
    channels = service.profile.channels
    return Channel.CACHE if Channel.CACHE in channels else channels[0]


def _most_deviating(service: Service, loops: Mapping[Channel, ChannelLoops]) -> Channel:
    best, highest = _default(service), LOWEST
    for channel, each in loops.items():
        deviation = each.worst_deviation(service.name, without=IndicatorName.SERVICE)
        if channel in service.profile.channels and deviation is not None and deviation > highest:
            best, highest = channel, deviation
    return best
