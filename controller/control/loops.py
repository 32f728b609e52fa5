# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""All loops of one channel: what they sense, what they ask for, what was made of it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from controller.control.deviation import LowPass, dead_zone, deviation
from controller.control.evidence import Evidence, Suspicion
from controller.control.loop import Loop
from controller.control.safety import StaleGuard
from controller.control.selector import Bid, Choice, choose
from controller.decision import (
    ChannelState,
    Demand,
    Indicator,
    IndicatorStatus,
    LoopReport,
    OffLoop,
)
from controller.indicators.roster import Roster, Service
from controller.indicators.senses import Senses
from controller.model import Channel, IndicatorName
from controller.settings import IndicatorSpec, Settings

__all__ = ("Loops", "Specs")

# The deviation of a service that hardly runs: nothing can hurt it.
_IDLE_DEVIATION = -1.0

# The indicators of a channel, by service; a service without any is left out.
Specs = Mapping[str, tuple[IndicatorSpec, ...]]


@dataclass(slots=True)
class _Loop:
    """One loop with what stands before it. ``deviation`` is unfiltered.

    Without an ``indicator`` it is off: the host never had a source for it.
    """

    spec: IndicatorSpec
    pid: Loop
    filter: LowPass
    guard: StaleGuard
    indicator: Indicator | None = None
    deviation: float | None = None
    state: ChannelState = ChannelState.FREE
    moved: bool = False


class Loops:
    """The loops of one channel, of every service.

    ``listen`` asks them, and ``settle`` tells them what was applied. After that: ``demand``,
    ``reports``, ``off`` and ``indicators`` for the plan, ``working`` if any loop has a source, and
    ``safe`` once every one of these has been without data for too long.
    """

    __slots__ = (
        "_by_service",
        "_channel",
        "_loops",
        "_specs",
        "_stale_ticks",
        "_suspicions",
        "demand",
        "indicators",
        "off",
        "reports",
        "safe",
        "working",
    )

    def __init__(self, channel: Channel, settings: Settings) -> None:
        self._channel = channel
        self._stale_ticks = settings.stale_ticks
        self._loops: dict[tuple[str, IndicatorName], _Loop] = {}
        self._by_service: dict[str, tuple[_Loop, ...]] = {}
        self._specs: Specs | None = None
        self._suspicions: dict[str, Suspicion] = {}
        self.working = self.safe = False
        self.demand = Demand(channel=channel, wanted=0.0, applied=0.0, state=ChannelState.FREE)
        self.reports: tuple[LoopReport, ...] = ()
        self.off: tuple[OffLoop, ...] = ()
        self.indicators: tuple[Indicator, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anybody to protect on this channel."""
        return bool(self._loops)

    def reconfigure(self, settings: Settings) -> None:
        """Take new settings; loops keep their demand."""
        self._stale_ticks = settings.stale_ticks
        for loop in self._loops.values():
            loop.guard.ticks = self._stale_ticks

    def worst_deviation(self, service: str, without: IndicatorName | None = None) -> float | None:
        """Return the largest filtered deviation of a service; ``None`` if nothing is known.

        *without* leaves one indicator out.
        """
        known = (
            loop.filter.value
            for loop in self._by_service.get(service, ())
            if loop.spec.name is not without and loop.filter.value is not None
        )
        return max(known, default=None)

    def deviation_of(self, service: str, indicator: IndicatorName) -> float | None:
        """Return one loop's filtered deviation; ``None`` if there is none."""
        loop = self._loops.get((service, indicator))
        return None if loop is None else loop.filter.value

    def raw_deviation(self, service: str) -> float:
        """Return the largest deviation of a service, as unfiltered as it is known; 0 if not."""
        known = (
            loop.filter.value if loop.deviation is None else loop.deviation
            for loop in self._by_service.get(service, ())
        )
        return max((value or 0.0 for value in known), default=0.0)

    def listen(
        self,
        senses: Senses,
        roster: Roster,
        specs: Specs,
        evidence: Callable[[Service, IndicatorSpec], Evidence],
        applied: float,
        dt_s: float,
        hold: bool,
    ) -> Choice:
        """Advance all loops by *dt_s* and return what they ask for; *applied* is the demand now.

        On *hold* (the first tick, or one after a gap) no loop moves. *evidence* is asked with
        the first of a service's *specs*.
        """
        self._match(specs, applied)
        return choose(
            bid
            for name, each in specs.items()
            for bid in self._bids(
                roster.services[name], each, senses, evidence, applied, dt_s, hold
            )
        )

    def shift(self, by: float) -> None:
        """Move every loop's demand: the same squeeze is called differently from now on."""
        for loop in self._loops.values():
            loop.pid.shift(by)

    def settle(self, choice: Choice, applied: float, dt_s: float) -> None:
        """Let every loop, winner or loser, follow the demand that was *applied*, and report."""
        for loop in self._loops.values():
            if loop.moved:
                loop.pid.track(applied, dt_s)
        self._report(choice, applied)

    def _match(self, specs: Specs, applied: float) -> None:
        """Keep, make and drop loops so that there is one for each of *specs*."""
        if specs is self._specs:
            return
        self._specs = specs
        loops: dict[tuple[str, IndicatorName], _Loop] = {}
        for service, each in specs.items():
            for spec in each:
                key = (service, spec.name)
                loop = self._loops.get(key)
                if loop is None:
                    pid = Loop(spec.gains, applied)
                    loop = _Loop(spec, pid, LowPass(), StaleGuard(self._stale_ticks))
                elif loop.spec is not spec:
                    loop.spec = spec
                    loop.pid.retune(spec.gains)
                loops[key] = loop
        self._loops = loops
        self._by_service = {
            name: tuple(loops[name, spec.name] for spec in each) for name, each in specs.items()
        }
        self._suspicions = {name: self._suspicions.get(name) or Suspicion() for name in specs}

    def _bids(
        self,
        service: Service,
        specs: tuple[IndicatorSpec, ...],
        senses: Senses,
        evidence: Callable[[Service, IndicatorSpec], Evidence],
        applied: float,
        dt_s: float,
        hold: bool,
    ) -> Iterable[Bid]:
        loops = self._by_service[service.name]
        for loop in loops:
            _sense(loop, senses.indicator(service, loop.spec), dt_s, hold)
        hurting = any((loop.filter.value or 0.0) > 0 for loop in loops if loop.moved)
        suspicion = self._suspicions[service.name]
        if any(loop.moved for loop in loops):
            suspicion.judge(
                hurting, lambda: evidence(service, specs[0]), service.profile.be_share_min
            )
        for loop in loops:
            if loop.indicator is None or loop.state is ChannelState.SAFE:
                continue
            # What is held stays where it is: not higher than now, whatever the loop wanted.
            demand = loop.pid.demand if loop.moved else min(loop.pid.demand, applied)
            filtered = loop.filter.value or 0.0
            yield Bid(service.name, loop.spec.name, demand, filtered, suspicion.state)

    def _report(self, choice: Choice, applied: float) -> None:
        working = [loop for loop in self._loops.values() if loop.indicator is not None]
        self.working = bool(working)
        self.safe = self.working and all(loop.state is ChannelState.SAFE for loop in working)
        state = choice.state
        if self.safe:
            state = ChannelState.SAFE
        elif working and all(loop.state is not ChannelState.FREE for loop in working):
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
        self.indicators = tuple(loop.indicator for loop in working if loop.indicator is not None)
        self.off = tuple(
            OffLoop(service, indicator, self._channel)
            for (service, indicator), loop in self._loops.items()
            if loop.indicator is None
        )
        selected = None if winner is None else winner[:2]
        self.reports = tuple(
            LoopReport(
                service=key[0],
                indicator=key[1],
                channel=self._channel,
                status=loop.indicator.status,
                value=loop.indicator.value,
                sweet_point=_sweet_point(loop.indicator, loop.spec),
                deviation=loop.deviation,
                filtered_deviation=loop.filter.value,
                demand=min(1.0, max(0.0, loop.pid.demand)),
                selected=key == selected,
                is_time=loop.spec.is_time,
            )
            for key, loop in self._loops.items()
            if loop.indicator is not None
        )


def _sense(loop: _Loop, indicator: Indicator | None, dt_s: float, hold: bool) -> None:
    loop.indicator = indicator
    loop.deviation = None
    if indicator is not None:
        loop.state = loop.guard.update(indicator.status is IndicatorStatus.STALE)
        if indicator.status is IndicatorStatus.IDLE:
            loop.deviation = _IDLE_DEVIATION
        elif indicator.status is IndicatorStatus.FRESH and indicator.value is not None:
            sweet_point = _sweet_point(indicator, loop.spec)
            loop.deviation = deviation(indicator.value, sweet_point, loop.spec)
    loop.moved = loop.deviation is not None and not hold
    if loop.deviation is not None and not hold:
        filtered = loop.filter.update(loop.deviation, dt_s, loop.spec.filter_ns / 1e9)
        loop.pid.update(dead_zone(filtered, loop.spec.dead_zone), dt_s)


def _sweet_point(indicator: Indicator, spec: IndicatorSpec) -> float:
    return spec.sweet_point if indicator.sweet_point is None else indicator.sweet_point
