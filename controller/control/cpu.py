# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The cpu channel: every service's loops, the selector, the slew and the quota rung."""

from collections.abc import Iterable
from dataclasses import dataclass

from controller.control.deviation import LowPass, dead_zone, deviation
from controller.control.evidence import Evidence, Suspicion
from controller.control.ladder import QuotaRung
from controller.control.loop import Loop
from controller.control.safety import StaleGuard
from controller.control.selector import Bid, Choice, choose
from controller.control.slew import Slew
from controller.control.tuning import CPU_QUOTA_LIMITS, tightest_limits
from controller.indicators.roster import Roster, Service
from controller.indicators.senses import Senses
from controller.model import (
    CgroupId,
    Channel,
    ChannelState,
    Demand,
    Indicator,
    IndicatorName,
    IndicatorSpec,
    IndicatorStatus,
    Knob,
    KnobLimits,
    LoopReport,
    Settings,
)

__all__ = ("CpuChannel",)

# The deviation of a service that hardly runs: nothing can hurt it.
_IDLE_DEVIATION = -1.0


@dataclass(slots=True)
class _Loop:
    """One loop with what stands before it. ``deviation`` is unfiltered."""

    spec: IndicatorSpec
    pid: Loop
    filter: LowPass
    guard: StaleGuard
    indicator: Indicator | None = None
    deviation: float | None = None
    state: ChannelState = ChannelState.FREE
    moved: bool = False


class CpuChannel:
    """Turns indicators into one demand, and the demand into CPUs for best-effort workloads.

    After ``step``: ``demand``, ``reports`` and ``indicators`` for the plan, and ``safe`` once
    every loop has been without data for too long.
    """

    __slots__ = (
        "_loops",
        "_settings",
        "_slew",
        "_suspicions",
        "demand",
        "indicators",
        "reports",
        "rung",
        "safe",
    )

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loops: dict[tuple[str, IndicatorName], _Loop] = {}
        self._suspicions: dict[str, Suspicion] = {}
        self._slew = Slew()
        self.rung = QuotaRung(float(settings.host.cpus))
        self.safe = False
        self.demand = Demand(channel=Channel.CPU, wanted=0.0, applied=0.0, state=ChannelState.FREE)
        self.reports: tuple[LoopReport, ...] = ()
        self.indicators: tuple[Indicator, ...] = ()

    def reconfigure(self, settings: Settings) -> None:
        """Take new settings; loops keep their demand."""
        self._settings = settings

    def suspicion(self, service: str) -> ChannelState:
        """Return what the evidence of a service says."""
        return self._suspicions[service].state if service in self._suspicions else ChannelState.FREE

    def limits(self, roster: Roster) -> KnobLimits:
        """Return the limits of the quota that satisfy every service present."""
        return tightest_limits(
            profile.limits.get(Knob.CPU_QUOTA, CPU_QUOTA_LIMITS) for profile in roster.profiles
        )

    def step(
        self,
        senses: Senses,
        roster: Roster,
        blocked: frozenset[CgroupId],
        now_ns: int,
        dt_s: float,
        hold: bool,
    ) -> dict[CgroupId, float]:
        """Advance all loops by *dt_s* and return the CPUs to grant.

        On *hold* (the first tick, or one after a gap) no loop moves. *blocked* best-effort
        workloads cannot be limited.
        """
        self._match_loops(roster)
        bids = [
            bid
            for service in roster.services.values()
            for bid in self._bids(service, senses, dt_s, hold)
        ]
        choice = choose(bids)
        limits = self.limits(roster)
        use = {cgroup: senses.use[cgroup] for cgroup in roster.best_effort if cgroup in senses.use}
        if not self._loops:
            # No service, nobody to protect: no reason to take it slowly.
            self.release()
        elif use and all(cgroup in blocked for cgroup in use):
            # Nothing that is commanded can be applied: the loops must know.
            self._slew.set(0.0)
        elif not hold:
            self._slew.move(choice.wanted, limits, now_ns, dt_s)
        applied = self._slew.applied
        for loop in self._loops.values():
            if loop.moved:
                loop.pid.track(applied, dt_s)
        self._report(choice, applied)
        self._feed_forward(senses, now_ns, dt_s)
        return self.rung.update(applied, use, senses.blame.culprits, blocked, limits.floor, now_ns)

    def release(self) -> None:
        """Let go of everything at once; the loops go on from demand zero."""
        self._slew.set(0.0)
        self.rung.release()

    def _feed_forward(self, senses: Senses, now_ns: int, dt_s: float) -> None:
        cpus = self._settings.host.cpus - self._settings.reserve_cpus - senses.system_cpus
        need = sum(
            each.oncpu + self._unaccepted(service) * each.inflicted
            for service, each in senses.needs.items()
        )
        self.rung.ceiling.update(now_ns, dt_s, cpus, need)

    def _unaccepted(self, service: str) -> float:
        """Return how much of a service's wait counts as CPU that it lacks, from 0 to 1.

        Around its sweet point a service waits as much as it may, and lacks nothing: there the
        loop decides alone. From deviation 1 (tolerance times over it) on, the wait counts more
        and more, and fully at 2.
        """
        deviations = (
            each.filter.value if each.deviation is None else each.deviation
            for key, each in self._loops.items()
            if key[0] == service
        )
        return min(1.0, max(0.0, max((value or 0.0 for value in deviations), default=0.0) - 1.0))

    def _match_loops(self, roster: Roster) -> None:
        loops: dict[tuple[str, IndicatorName], _Loop] = {}
        for service in roster.services.values():
            for spec in _cpu_specs(service):
                key = (service.name, spec.name)
                loop = self._loops.get(key)
                if loop is None:
                    pid = Loop(spec.gains, self._slew.applied)
                    loop = _Loop(spec, pid, LowPass(), StaleGuard(self._settings.stale_ticks))
                elif loop.spec is not spec:
                    loop.spec = spec
                    loop.pid.retune(spec.gains)
                loop.guard.ticks = self._settings.stale_ticks
                loops[key] = loop
        self._loops = loops
        self._suspicions = {
            name: self._suspicions.get(name) or Suspicion() for name in roster.services
        }

    def _bids(self, service: Service, senses: Senses, dt_s: float, hold: bool) -> Iterable[Bid]:
        loops = [self._loops[service.name, spec.name] for spec in _cpu_specs(service)]
        for loop in loops:
            self._sense(loop, service, senses, dt_s, hold)
        hurting = any((loop.filter.value or 0.0) > 0 for loop in loops if loop.moved)
        state = self._suspicions[service.name].state
        if any(loop.moved for loop in loops):
            evidence = self._evidence(service, senses)
            state = self._suspicions[service.name].judge(
                hurting, evidence, service.profile.be_share_min
            )
        for loop in loops:
            if loop.state is ChannelState.SAFE:
                continue
            held = not loop.moved
            # What is held stays where it is: not higher than now, whatever the loop wanted.
            demand = min(loop.pid.demand, self._slew.applied) if held else loop.pid.demand
            yield Bid(service.name, loop.spec.name, demand, loop.filter.value or 0.0, state)

    def _sense(
        self, loop: _Loop, service: Service, senses: Senses, dt_s: float, hold: bool
    ) -> None:
        indicator = senses.indicator(service, loop.spec)
        loop.indicator = indicator
        loop.state = loop.guard.update(indicator.status is IndicatorStatus.STALE)
        if indicator.status is IndicatorStatus.IDLE:
            loop.deviation = _IDLE_DEVIATION
        elif indicator.status is IndicatorStatus.FRESH and indicator.value is not None:
            loop.deviation = deviation(indicator.value, loop.spec)
        else:
            loop.deviation = None
        loop.moved = loop.deviation is not None and not hold
        if loop.deviation is not None and not hold:
            filtered = loop.filter.update(loop.deviation, dt_s, loop.spec.filter_ns / 1e9)
            loop.pid.update(dead_zone(filtered, loop.spec.dead_zone), dt_s)

    def _evidence(self, service: Service, senses: Senses) -> Evidence:
        throttled: int | None = None
        inflicted = 0.0
        spec = next(iter(_cpu_specs(service)))
        for cgroup in service.cgroups:
            reading = senses.reading(cgroup, spec)
            if reading is not None:
                inflicted += reading.inflicted_ratio
                if reading.throttled_ns is not None:
                    throttled = (throttled or 0) + reading.throttled_ns
        share = senses.blame.shares.get(service.name)
        return Evidence(
            be_share=share.ratio if share else None,
            throttled_ns=throttled,
            inflicted_cpus=inflicted,
            steal_cpus=senses.steal_cpus,
            cpus=self._settings.host.cpus,
        )

    def _report(self, choice: Choice, applied: float) -> None:
        loops = self._loops
        self.safe = bool(loops) and all(loop.state is ChannelState.SAFE for loop in loops.values())
        state = choice.state
        if self.safe:
            state = ChannelState.SAFE
        elif loops and all(loop.state is not ChannelState.FREE for loop in loops.values()):
            state = ChannelState.HOLD
        elif state is ChannelState.FREE and applied > 0:
            state = ChannelState.SQUEEZE
        winner = choice.winner
        self.demand = Demand(
            channel=Channel.CPU,
            wanted=choice.wanted,
            applied=applied,
            state=state,
            service=winner.service if winner else None,
            indicator=winner.indicator if winner else None,
        )
        self.indicators = tuple(each.indicator for each in loops.values() if each.indicator)
        self.reports = tuple(
            LoopReport(
                service=key[0],
                indicator=key[1],
                channel=Channel.CPU,
                status=loop.indicator.status,
                value=loop.indicator.value,
                sweet_point=loop.spec.sweet_point,
                deviation=loop.deviation,
                filtered_deviation=loop.filter.value,
                demand=min(1.0, max(0.0, loop.pid.demand)),
                selected=winner is not None and key == winner[:2],
            )
            for key, loop in loops.items()
            if loop.indicator is not None
        )


def _cpu_specs(service: Service) -> tuple[IndicatorSpec, ...]:
    return tuple(spec for spec in service.profile.indicators if spec.channel is Channel.CPU)
