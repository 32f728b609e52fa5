# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""All loops of one channel: their selection by the largest demand, and their reports."""

from collections.abc import Callable, Mapping
from itertools import chain

from controller.core.decision import ChannelState, Demand, Indicator, LoopReport, OffLoop, Verdict
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.loop.evidence import Evidence
from controller.core.loop.pid import LOWEST
from controller.core.loop.selector import Choice, choose
from controller.core.loop.service_loops import ServiceLoops
from controller.core.model import Channel, IndicatorName
from controller.core.settings import DEAD_ZONE, IndicatorSpec, LawSettings, Settings
from controller.core.workload_index import Service, WorkloadIndex

__all__ = ("ChannelLoops", "Specs")

# The indicators of a channel by service. A service without any is left out.
Specs = Mapping[str, tuple[IndicatorSpec, ...]]


# The loops of a service that is not present: nothing is known of it, and nothing is asked.
_NONE = ServiceLoops("", Channel.CPU, (), 0.0, 0, LawSettings())


class ChannelLoops:
    """The loops of all services on one channel; true if there is any service.

    In each tick ``bid`` advances the loops and returns the selected demand, and ``track`` feeds the
    applied demand back. Valid after ``track``: ``demand``, ``reports``, ``off`` and ``indicators``
    for the plan, ``selected`` (the report of the loop that decided), ``working`` (at least one loop
    has a source) and ``safe`` (all loops with a source have been without data for too long).
    """

    __slots__ = (
        "_channel",
        "_law",
        "_services",
        "_specs",
        "_stale_ticks",
        "demand",
        "indicators",
        "off",
        "reports",
        "safe",
        "selected",
        "working",
    )

    def __init__(self, channel: Channel, settings: Settings) -> None:
        self._channel = channel
        self._stale_ticks = settings.stale_ticks
        self._law = settings.law
        self._services: dict[str, ServiceLoops] = {}
        self._specs: Specs | None = None
        self.working = self.safe = False
        self.demand = Demand(channel=channel, wanted=0.0, applied=0.0, state=ChannelState.FREE)
        self.reports: tuple[LoopReport, ...] = ()
        self.off: tuple[OffLoop, ...] = ()
        self.indicators: tuple[Indicator, ...] = ()
        self.selected: LoopReport | None = None

    def __bool__(self) -> bool:
        """Whether there is a service to protect on this channel."""
        return bool(self._services)

    def reconfigure(self, settings: Settings) -> None:
        """Take new settings; loops keep their demand."""
        self._stale_ticks = settings.stale_ticks
        self._law = settings.law
        for loops in self._services.values():
            loops.reconfigure(self._stale_ticks, self._law)

    @property
    def charges(self) -> dict[str, float]:
        """How much, above 0 and up to 1, the squeeze is for each service."""
        return {name: each.charge for name, each in self._services.items() if each.charge > 0}

    @property
    def suffering(self) -> list[str]:
        """The services that suffer, whatever the cause, and those that the squeeze is for."""
        return [name for name, each in self._services.items() if each.charge > 0 or each.suffers]

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
        known = (each.excess for each in asking)
        return max((value for value in known if value is not None), default=None)

    @property
    def unmet(self) -> float | None:
        """The largest deviation of this tick, without limits, of services that ask for the squeeze.

        ``None`` if none asks, or none of them has data or one that a squeeze can end.
        """
        asking = (each for each in self._services.values() if each.may_act and each.charge > 0)
        known = (each.unmet for each in asking)
        return max((value for value in known if value is not None), default=None)

    @property
    def most(self) -> float | None:
        """The largest demand of use, if trials showed it for all services that suffer."""
        found = [each.most for each in self._services.values() if each.most is not None]
        if not found or any(each.charge > 0 for each in self._services.values()):
            return None
        return max(found)

    @property
    def is_ruled_out(self) -> bool:
        """Whether a service suffers, and for another cause than best-effort work."""
        return self.demand.state in (ChannelState.SELF, ChannelState.STEAL, ChannelState.NOT_BE)

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
        return max((each for name, each in known.items() if name is not without), default=None)

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
    ) -> Choice:
        """Advance all loops by *dt_s* and return the selected demand; *applied* is the present one.

        On *hold* (the first tick, or one after a gap) no loop moves. *evidence* is called with the
        first of a service's *specs*.
        """
        self._set_specs(specs, applied)
        services = workload_index.services
        return choose(
            chain.from_iterable(
                loops.bid(services[name], tracker, evidence, applied, dt_s, hold)
                for name, loops in self._services.items()
            )
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

    def track(self, choice: Choice, applied: float, dt_s: float) -> None:
        """Let every loop, selected or not, track the *applied* demand; make the reports."""
        for loops in self._services.values():
            loops.track(choice.winner, applied, dt_s)
        self._report(choice, applied)

    def _set_specs(self, specs: Specs, applied: float) -> None:
        """Keep, create and remove loops so that there is one for each of *specs*."""
        if specs is self._specs:
            return
        self._specs = specs
        before, self._services = self._services, {}
        for service, each in specs.items():
            loops = before.get(service)
            if loops is None:
                loops = ServiceLoops(
                    service, self._channel, each, applied, self._stale_ticks, self._law
                )
            else:
                loops.set_specs(each, applied)
            self._services[service] = loops

    def _report(self, choice: Choice, applied: float) -> None:
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
        winner = choice.winner
        self.demand = Demand(
            channel=self._channel,
            wanted=choice.wanted,
            applied=applied,
            state=state,
            service=winner.service if winner else None,
            indicator=winner.indicator if winner else None,
        )
        self.indicators = tuple(chain.from_iterable(loops.indicators for loops in services))
        self.off = tuple(chain.from_iterable(loops.off for loops in services))
        self.reports = tuple(chain.from_iterable(loops.reports for loops in services))
        self.selected = next((each for each in self.reports if each.selected), None)
