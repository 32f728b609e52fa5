# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The knobs of best-effort work that are only on or off: sched-idle, core-scheduling cookies.

Sched-idle is on while a service wants it. Cgroups whose weight another program writes, such as
those of kubelet, are the exception: the kernel refuses a weight for an idle cgroup, and kubelet
does not start after such a refusal. They get the lowest weight instead (``Workload.may_idle``), or
stay as they are. ``controller.workloads.idle_placement`` has the cgroups.

With a cookie on best-effort work and none on services, the kernel never runs both on one core at
the same time. That helps a service only if it shared cores before, and it costs forced idle time.
Without sched-idle it even halves the CPU time of a service when both are busy, so it requires
sched-idle. A PID loop would cycle across the jump between the two states. So the knob is latched,
and its effect is verified after each engagement.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from controller.core.channels.ladder import TickContext
from controller.core.decision import Action, ChannelState, Verdict
from controller.core.limiters import Backoff, HoldOffLatch
from controller.core.loop.channel_loops import ChannelLoops
from controller.core.model import Knob, KnobValue
from controller.core.settings import DEAD_ZONE, CoreMode, CoreSettings
from controller.core.units import NS_PER_SEC, format_duration

__all__ = ("HELPED", "IN_VAIN", "REMOVED", "SET", "CookieGate", "SchedIdlePolicy")

# How verdicts begin: every begin, every removal, and what was verified.
SET = "cookies set on best-effort"
REMOVED = "cookies removed: "
HELPED = "cookies stay: "
IN_VAIN = f"{REMOVED}they do not help "

# How long a knob of two states stays on after it was last needed; also the first pause after
# cookies in vain, of which the longest is an hour.
_HOLD_NS = 60 * NS_PER_SEC
# The need must last this long without a break before an engagement. The mean deviation of this time
# is the one to compare with.
_BEFORE_NS = 5 * NS_PER_SEC


class SchedIdlePolicy:
    """On while a service is present whose profile wants sched-idle, and a minute longer.

    ``on`` is the decision of the last tick.
    """

    def __init__(self) -> None:
        self._latch = HoldOffLatch(_HOLD_NS)
        self.on = False

    def end_hold(self) -> None:
        """End the hold-off: if the new profiles do not want sched-idle, it ends at once."""
        self._latch = HoldOffLatch(_HOLD_NS)

    def actions(self, safe: bool, restore: bool, context: TickContext) -> list[Action]:
        """Return the writes of this tick.

        In a tick without data (*safe*) the decision stays, or ends on *restore*. On a resync every
        cgroup is checked, also if the decision did not change.
        """
        index, was = context.workload_index, self.on
        if safe:
            self.on = was and not restore
        else:
            wanted = any(profile.sched_idle for profile in index.profiles)
            self.on = self._latch.update(wanted, context.now_ns)
        if self.on is was and not context.resync:
            return []
        text = "restore cpu.idle and the weight: sched-idle is off now"
        if self.on:
            text = "a latency-sensitive service is present: sched-idle for best-effort"
        values = [(each, value if self.on else None) for each, value in index.idle_targets.items()]
        return context.knobs.limit(Knob.SCHED_IDLE, values, text, context.now_ns)


@dataclass(slots=True)
class CookieGate:
    """Decides in every tick whether best-effort work carries a cookie.

    ``on`` is the decision, ``verdict`` explains it in the ticks in which it changed or was
    confirmed. After an engagement in mode auto the gate verifies for ``CoreSettings.verify_ns``
    that the mean deviation fell; if it did not, the gate disengages, and the wait until the next
    try doubles. It also disengages, without a wait, if no deviation was known in that time. New
    ``settings`` leave the decision and the waiting times as they are.
    """

    settings: CoreSettings
    on: bool = False
    verdict: Verdict | None = None
    _latch: HoldOffLatch = field(default_factory=lambda: HoldOffLatch(_HOLD_NS))
    _backoff: Backoff = field(default_factory=lambda: Backoff(_HOLD_NS, 60 * _HOLD_NS))
    _not_before_ns: int = 0
    _since_ns: int | None = None  # the start of the engagement, or else of the need
    # The deviations before the engagement, and after it.
    _before: list[float] = field(default_factory=list)
    _after: list[float] = field(default_factory=list)
    _verifying: bool = False

    def actions(
        self, loops: ChannelLoops, overlap: float | None, yields: bool, context: TickContext
    ) -> list[Action]:
        """Return the writes of this tick; *loops* are the cache channel's.

        *overlap* and *yields* (sched-idle is on for best-effort) are those of ``step``.
        """
        demand, was = loops.demand, self.on
        on = self.step(
            context.now_ns,
            needed=demand.wanted > 0 and demand.state is ChannelState.SQUEEZE,
            possible=bool(context.knobs.movable(Knob.CORE_COOKIE, context.now_ns)),
            yields=yields,
            services=bool(context.workload_index.profiles) and not loops.safe,
            overlap=overlap,
            deviation=None if loops.selected is None else loops.selected.filtered_deviation,
        )
        if on is was and not context.resync:
            return []
        text = "restore core.cookie: cookies are off now"
        if on:
            text = "a cookie keeps best-effort off the cores that run services"
        values = [
            (each.place, KnobValue(each.path) if on else None)
            for each in context.knobs.targets(Knob.CORE_COOKIE)
        ]
        return context.knobs.limit(Knob.CORE_COOKIE, values, text, context.now_ns)

    def step(
        self,
        now_ns: int,
        *,
        needed: bool,
        possible: bool,
        yields: bool,
        services: bool,
        overlap: float | None,
        deviation: float | None,
    ) -> bool:
        """Return whether best-effort work is to carry a cookie.

        :param needed: the cache channel demands a squeeze.
        :param possible: there is a core.cookie knob, and it can be moved.
        :param yields: sched-idle, or a weight near zero, is set on best-effort work.
        :param services: a latency-sensitive workload is present.
        :param overlap: ``Snapshot.core_overlap_ratio``.
        :param deviation: that of the service that suffers most on the cache channel; ``None``: not
            known.
        """
        self.verdict = None
        mode = self.settings.mode
        obstacle = _obstacle(mode, possible=possible, yields=yields, services=services)
        if obstacle:
            if self.on:
                self._stop(f"{REMOVED}{obstacle}")
            self._since_ns = None
        elif mode is CoreMode.ON:
            if not self.on:
                self._start(now_ns, f"{SET}, as configured", verify=False)
        elif self.on:
            self._step_on(now_ns, needed, deviation)
        else:
            self._step_off(now_ns, needed, overlap, deviation)
        return self.on

    def _step_off(
        self, now_ns: int, needed: bool, overlap: float | None, deviation: float | None
    ) -> None:
        shared = overlap is not None and overlap >= self.settings.overlap_min
        if not needed or not shared or deviation is None or now_ns < self._not_before_ns:
            self._since_ns = None
            return
        if self._since_ns is None:
            self._since_ns = now_ns
            self._before = []
        self._before.append(deviation)
        if now_ns - self._since_ns >= _BEFORE_NS:
            self._start(
                now_ns,
                f"{SET}: services shared cores with it for {overlap:.0%} of "
                f"their time, deviation {_mean(self._before):.2f} on the cache channel",
                verify=True,
            )

    def _start(self, now_ns: int, text: str, *, verify: bool) -> None:
        self.on = True
        self._verifying = verify
        self._since_ns = now_ns
        self._after = []
        self._latch.update(needed=True, now_ns=now_ns)
        self._report(text)

    def _step_on(self, now_ns: int, needed: bool, deviation: float | None) -> None:
        settings = self.settings
        assert self._since_ns is not None
        age_ns = now_ns - self._since_ns
        if self._verifying:
            # The first third is left out, because windows and filters still hold old values.
            if deviation is not None and age_ns >= settings.verify_ns // 3:
                self._after.append(deviation)
            if age_ns >= settings.verify_ns:
                self._conclude(now_ns)
        elif not self._latch.update(needed, now_ns):
            self._stop(f"{REMOVED}the cache channel has not needed them for a while")

    def _conclude(self, now_ns: int) -> None:
        if not self._after:
            self._stop(f"{REMOVED}their effect could not be verified, no service showed it")
            return
        before, after = _mean(self._before), _mean(self._after)
        numbers = f"deviation {before:.2f} before, {after:.2f} with them"
        self._verifying = False
        if before - after >= DEAD_ZONE:
            self._backoff.reset()
            self._latch.update(needed=True, now_ns=now_ns)
            self._report(f"{HELPED}{numbers}")
            return
        pause_ns = round(self._backoff.next())
        self._not_before_ns = now_ns + pause_ns
        self._latch = HoldOffLatch(_HOLD_NS)
        self._stop(f"{IN_VAIN}({numbers}); next try after {format_duration(pause_ns)}")

    def _stop(self, text: str) -> None:
        self.on = False
        self._verifying = False
        self._since_ns = None
        self._report(text)

    def _report(self, text: str) -> None:
        self.verdict = Verdict(subject=Knob.CORE_COOKIE, text=text)


def _mean(deviations: Sequence[float]) -> float:
    return sum(deviations) / len(deviations)


def _obstacle(mode: CoreMode, *, possible: bool, yields: bool, services: bool) -> str:
    if mode is CoreMode.OFF:
        return "switched off by the configuration"
    if not possible:
        return "core scheduling cannot be used now"
    if not services:
        return "no latency-sensitive service is present"
    return "" if yields else "best-effort does not yield to services (sched-idle is off)"
