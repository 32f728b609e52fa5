# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The loops of one service on one channel, and the gate of evidence in front of them.

Quiescent loops are not evaluated. Loops become quiescent when no counter of the service changed
within its longest window and they have converged to the lowest deviation. They demand nothing then;
on the next change of a counter they resume at the demand to which they would have converged.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
import math
from typing import NamedTuple

from controller.core.decision import (
    ChannelState,
    Demand,
    Indicator,
    IndicatorStatus,
    LoopReport,
    OffLoop,
    Verdict,
)
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.limiters import NEAR, SMOOTH_S, has_risen
from controller.core.loop.evidence import Evidence, EvidenceGate, SqueezeTrial
from controller.core.loop.pid import HIGHEST, LOWEST, IndicatorLoop
from controller.core.model import Channel, IndicatorName
from controller.core.settings import IndicatorSpec, Settings
from controller.core.workload_index import Service

__all__ = ("Bid", "ServiceLoops", "worst")

# Seconds in which a charge moves by 1 at a deviation of 1. With it the grants of a culprit move by
# about four deviations, so this is a loop of a crossover of 0.07 rad/s, slow enough for a low-pass
# of 4 s at four times the gain.
_CHARGE_S = 60.0

# A high wait that shows in each of so many ticks is no stall of the host, which takes milliseconds
# and falls into one tick or two. After a tick that the kernel caused, the next one may come after
# half the usual time, so a stall that is longer than that may fall into three.
_LASTING_TICKS = 3


def worst(deviations: Iterable[float | None]) -> float | None:
    """Return the largest of those *deviations* that are known; ``None`` if none is."""
    return max((each for each in deviations if each is not None), default=None)


class Bid(NamedTuple):
    """The demand of one loop.

    Only a bid in state SQUEEZE or FREE takes part in the selection. Any other state is the reason
    why the loop must not act. ``deviation`` is the filtered one.
    """

    service: str
    indicator: IndicatorName
    demand: float
    deviation: float
    state: ChannelState


@dataclass(slots=True)
class ServiceLoops:
    """The loops of one service on *channel*, one for each spec that was set.

    In each tick ``bid`` advances the loops and ``track`` feeds the applied demand back. Valid after
    ``track``: ``reports``, ``off`` and ``indicators`` for the plan, ``states`` of those loops that
    have a source, ``verdict`` on a trial that ended in this tick, and ``charge``: how much, from 0
    to 1, the squeeze is for this service.
    """

    service: str
    channel: Channel
    charge: float = 0.0
    reports: tuple[LoopReport, ...] = ()
    off: tuple[OffLoop, ...] = ()
    indicators: tuple[Indicator, ...] = ()
    states: tuple[ChannelState, ...] = ()
    verdict: Verdict | None = None
    _loops: tuple[IndicatorLoop, ...] = ()
    _names: frozenset[IndicatorName] = frozenset()
    _gate: EvidenceGate = field(default_factory=EvidenceGate)
    _trial: SqueezeTrial = field(init=False)
    _vain_s: float = 0.0
    _quiescent: bool = False
    _steady: bool = False

    def __post_init__(self) -> None:
        self.end_trial()

    def set_specs(self, specs: Sequence[IndicatorSpec], applied: float) -> None:
        """Keep, create and remove loops; new ones start at the demand *applied*."""
        if tuple(map(id, specs)) == tuple(id(loop.spec) for loop in self._loops):
            return
        if self._quiescent:
            self._resume(applied)
        before = {loop.spec.name: loop for loop in self._loops}
        self._loops = tuple(before.get(spec.name) or IndicatorLoop(spec, applied) for spec in specs)
        self._names = frozenset(spec.name for spec in specs)
        for loop, spec in zip(self._loops, specs, strict=True):
            loop.set_spec(spec)

    def end_trial(self) -> None:
        """Forget what was found out about the use of a squeeze."""
        # On the cpu channel blame shows what best-effort causes, and a loop asks for no more.
        self._trial = SqueezeTrial(unmet=self.channel is not Channel.CPU)
        self._vain_s = 0.0

    def shift(self, by: float) -> None:
        """Add *by* to the demand of every loop."""
        for loop in self._loops:
            loop.pid.shift(by)

    @property
    def spec(self) -> IndicatorSpec | None:
        """The spec of the first loop, in whose window evidence is taken; ``None`` without one."""
        return self._loops[0].spec if self._loops else None

    @property
    def may_act(self) -> bool:
        """Whether the evidence lets the loops squeeze or release, and no trial failed."""
        acts = self._gate.state in (ChannelState.SQUEEZE, ChannelState.FREE)
        return acts and self._trial.most is None

    @property
    def most(self) -> float | None:
        """The largest demand of use, after a trial that showed it; ``None`` without a limit."""
        return self._trial.most

    @property
    def excess(self) -> float | None:
        """The largest deviation without the limits of its scale, filtered where there is no other.

        ``None`` if none is known.
        """
        return worst(
            loop.filter.value if loop.excess is None else loop.excess for loop in self._loops
        )

    @property
    def unmet(self) -> float | None:
        """The largest deviation of this tick, without limits, that a squeeze can end.

        ``None`` if there is no data, or a squeeze cannot end it.
        """
        return worst(loop.excess for loop in self._loops if not loop.is_bounded)

    @property
    def state(self) -> ChannelState:
        """What the evidence says of this service.

        Where the host explains its waits, a squeeze goes on until it is seen to have no effect.
        """
        let_go = self._gate.in_vain and self._trial.most is not None
        return ChannelState.STEAL if let_go else self._gate.state

    @property
    def waits_for_host(self) -> bool:
        """Whether the host explains the waits of this service, also during a squeeze."""
        return self._gate.in_vain or self._gate.state is ChannelState.STEAL

    @property
    def was_in_vain(self) -> bool:
        """Whether the evidence is against best-effort work, and a trial showed no use."""
        most = self._trial.most
        return most is not None and most < NEAR and self._gate.state is ChannelState.SQUEEZE

    def log_excess(self, *, filtered: bool = False) -> float | None:
        """Return the largest logarithm of an indicator relative to its sweet point.

        *filtered*: no less than the filtered one, so that noise does not lower it. ``None``:
        unknown.
        """
        return worst(
            (max(loop.excess, loop.filter.value or LOWEST) if filtered else loop.excess)
            * math.log(loop.spec.tolerance)
            for loop in self._loops
            if loop.excess is not None
        )

    @property
    def deviations(self) -> Mapping[IndicatorName, float]:
        """The filtered deviations that are known."""
        return {
            loop.spec.name: loop.filter.value
            for loop in self._loops
            if loop.filter.value is not None
        }

    def bid(
        self,
        service: Service,
        tracker: IndicatorTracker,
        evidence: Callable[[Service, IndicatorSpec], Evidence],
        settings: Settings,
        applied: float,
        dt_s: float,
        hold: bool,
    ) -> list[Bid]:
        """Advance the loops by *dt_s* and return their bids; see ``ChannelLoops.bid``."""
        self.verdict = None
        self._steady = tracker.is_steady(service.name, self._names)
        if self._quiescent:
            if self._steady and not hold:
                return []
            self._resume(applied)
        loops, gate, verify = self._loops, self._gate, settings.law.verify_squeeze
        # Tolerance times the sweet point; during a squeeze, when loop and noise move the indicator
        # around its sweet point, the end of the scale.
        high = 1.0 if applied < NEAR else HIGHEST

        def lasts(spec: IndicatorSpec, least: float) -> bool:
            return tracker.waits_in_each_tick(service, spec, least, _LASTING_TICKS)

        for loop in loops:
            indicator = tracker.indicator(service, loop.spec)
            loop.update(indicator, dt_s, hold, high, lasts, settings.stale_ticks, gate.log_gain)
        moved = [loop for loop in loops if loop.moved]
        if service.paused:
            if gate.state is not ChannelState.PAUSED:
                self.end_trial()
            gate.state = ChannelState.PAUSED
        elif moved:
            hurting = any((loop.filter.value or 0.0) > 0 for loop in moved)
            gate.update(
                hurting, lambda: evidence(service, loops[0].spec), service.profile.be_share_min
            )
            if gate.in_vain and not verify:
                gate.state = ChannelState.STEAL
        if verify and not service.paused:
            self._judge(moved, applied, tracker.time_ns / 1e9, dt_s)
        return self._bids(service, applied)

    def _bids(self, service: Service, applied: float) -> list[Bid]:
        bids = []
        most, state = self._trial.most, self.state
        if state is ChannelState.SQUEEZE and self.was_in_vain:
            state = ChannelState.NOT_BE
        for loop in self._loops:
            filtered = loop.filter.value or 0.0
            if loop.indicator is None or loop.state is ChannelState.SAFE:
                continue
            if service.paused and filtered <= 0:
                continue  # only a service that suffers gives the channel its state
            # A loop that holds demands at most what is applied now. So does one of a service that
            # does not suffer, which needs no evidence: after a quiet time the proportional part of
            # a loop rises above zero long before the sweet point is reached. And so does one of a
            # service without load, whose filter remembers what it suffered before.
            idle = loop.indicator.status is IndicatorStatus.IDLE
            rises = loop.moved and not idle and state is not ChannelState.FREE
            limits = (math.inf if rises else applied, math.inf if most is None else most)
            demand = min(loop.pid.demand, *limits)
            bids.append(Bid(service.name, loop.spec.name, demand, filtered, state))
        return bids

    def _judge(
        self, moved: Sequence[IndicatorLoop], applied: float, now_s: float, dt_s: float
    ) -> None:
        trial, asks = self._trial, self._gate.state is ChannelState.SQUEEZE
        if not (asks or trial.most is not None):
            self._vain_s = 0.0
            return
        known = {loop.spec.name: loop.excess for loop in moved if loop.excess is not None}
        window_s = max(loop.spec.window_ns for loop in self._loops) / 1e9
        trial.update(known, asks, applied, window_s, now_s, dt_s)
        # The gate decides by the low-pass, which remembers what the squeeze has already mended.
        # What counts is far more than the loop leaves around the sweet point.
        vain = has_risen(max(known.values(), default=0.0), 0.0) and trial.lacks_effect
        vain = vain and self._gate.in_vain and applied >= NEAR
        self._vain_s = self._vain_s + dt_s if vain else 0.0
        if self._vain_s >= window_s + SMOOTH_S:
            self._vain_s = 0.0
            trial.give_up()
        if trial.again is not None:
            self.shift(trial.again - applied)
        if trial.report:
            self.verdict = Verdict(subject=self.service, text=f"{self.channel}: {trial.report}")

    def track(self, demand: Demand, applied: float, dt_s: float) -> None:
        """Let every loop track what was *applied*; *demand* names the selected loop."""
        won = demand.indicator if demand.service == self.service else None
        self._update_charge(dt_s)
        if self._quiescent:
            return
        # The service with the winning loop is not quiescent: the plan names that loop.
        self._quiescent = (
            self._steady
            and won is None
            and self._gate.state is ChannelState.FREE
            and all(loop.converged for loop in self._loops)
        )
        for loop in self._loops:
            if loop.moved:
                loop.pid.track(applied, dt_s)
        self._report(won)

    def _update_charge(self, dt_s: float) -> None:
        """Raise the charge at once by what the service suffers, else integrate the deviation.

        An integral and not a switch: of two services with a culprit each, both end at their sweet
        points, because the one below it charges less and less.
        """
        most = max((loop.filter.value or 0.0 for loop in self._loops), default=LOWEST)
        if not self.may_act:
            self.charge = 0.0
        elif self._gate.state is ChannelState.SQUEEZE and most > self.charge:
            self.charge = min(1.0, most)
        elif self.charge > 0:
            self.charge = min(1.0, max(0.0, self.charge + most * dt_s / _CHARGE_S))

    def _resume(self, applied: float) -> None:
        # As if the loops had tracked the applied demand all the time.
        self._quiescent = False
        for loop in self._loops:
            loop.pid.converge(applied)

    def _report(self, selected: IndicatorName | None) -> None:
        working = [(loop, loop.indicator) for loop in self._loops if loop.indicator is not None]
        self.states = tuple(loop.state for loop, _ in working)
        self.indicators = tuple(indicator for _, indicator in working)
        self.off = tuple(
            OffLoop(self.service, loop.spec.name, self.channel)
            for loop in self._loops
            if loop.indicator is None
        )
        self.reports = tuple(
            LoopReport(
                service=self.service,
                indicator=loop.spec.name,
                channel=self.channel,
                status=indicator.status,
                value=indicator.value,
                sweet_point=loop.sweet_point,
                deviation=loop.deviation,
                filtered_deviation=loop.filter.value,
                excess=loop.excess,
                demand=0.0 if self._quiescent else min(1.0, max(0.0, loop.pid.demand)),
                selected=loop.spec.name is selected,
                is_time=loop.spec.is_time,
            )
            for loop, indicator in working
        )
