# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Core-scheduling cookies on best-effort work: a knob of two states beside the cache ladder.

With a cookie on best-effort work and none on services, the kernel never runs both on one core at
the same time. That helps a service only if it shared cores before, and it costs forced idle time.
Without sched-idle it even halves the CPU time of a service when both are busy, so it requires
sched-idle. A PID loop would cycle across the jump between the two states. So the knob is latched,
and its effect is verified after each engagement.
"""

from controller.core.channels.ladder import TickContext
from controller.core.decision import Action, ChannelState, Verdict
from controller.core.loop.channel_loops import ChannelLoops
from controller.core.loop.reaction import Backoff
from controller.core.model import CgroupId, Knob, KnobValue
from controller.core.pace.limiters import HoldOffLatch
from controller.core.settings import DEAD_ZONE, CoreMode, CoreSettings
from controller.core.units import NS_PER_SEC, format_duration
from controller.core.writes.sched_idle import HOLD_NS

__all__ = (
    "HELPED",
    "IN_VAIN",
    "REMOVED",
    "SET",
    "CookieGate",
)

# How verdicts begin: every begin, every removal, and what was verified.
SET = "cookies set on best-effort"
REMOVED = "cookies removed: "
HELPED = "cookies stay: "
IN_VAIN = f"{REMOVED}they do not help "

_LONGEST_NS = 3600 * NS_PER_SEC
# The need must last this long without a break before an engagement. The mean deviation of this time
# is the one to compare with.
_BEFORE_NS = 5 * NS_PER_SEC


class _Mean:
    """A running mean; ``None`` before the first value."""

    __slots__ = ("_count", "_sum")

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def add(self, value: float) -> None:
        self._sum += value
        self._count += 1

    @property
    def value(self) -> float | None:
        return self._sum / self._count if self._count else None


class CookieGate:
    """Decides in every tick whether best-effort work carries a cookie.

    ``on`` is the decision, ``verdict`` explains it in the ticks in which it changed or was
    confirmed. After an engagement in mode auto the gate verifies for ``CoreSettings.verify_ns``
    that the mean deviation fell; if it did not, the gate disengages, and the wait until the next
    try doubles. It also disengages, without a wait, if no deviation was known in that time. New
    ``settings`` leave the decision and the waiting times as they are.
    """

    __slots__ = (
        "_after",
        "_backoff",
        "_before",
        "_latch",
        "_not_before_ns",
        "_since_ns",
        "_verifying",
        "on",
        "settings",
        "verdict",
    )

    def __init__(self, settings: CoreSettings) -> None:
        self.settings = settings
        self._latch = HoldOffLatch(HOLD_NS)
        self._backoff = Backoff(HOLD_NS, _LONGEST_NS)
        self._not_before_ns = 0
        self._since_ns: int | None = None  # the start of the engagement, or else of the need
        self._before = _Mean()
        self._after = _Mean()
        self._verifying = False
        self.on = False
        self.verdict: Verdict | None = None

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
        targets = context.knobs.targets(Knob.CORE_COOKIE)
        return context.knobs.switch(
            on,
            Knob.CORE_COOKIE,
            {CgroupId(each.scope, each.id): KnobValue(each.path) for each in targets},
            "a cookie keeps best-effort off the cores that run services",
            "restore core.cookie: cookies are off now",
            context.now_ns,
        )

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
            self._before = _Mean()
        self._before.add(deviation)
        if now_ns - self._since_ns >= _BEFORE_NS:
            self._start(
                now_ns,
                f"{SET}: services shared cores with it for {overlap:.0%} of "
                f"their time, deviation {self._before.value:.2f} on the cache channel",
                verify=True,
            )

    def _start(self, now_ns: int, text: str, *, verify: bool) -> None:
        self.on = True
        self._verifying = verify
        self._since_ns = now_ns
        self._after = _Mean()
        self._latch.update(needed=True, now_ns=now_ns)
        self._report(text)

    def _step_on(self, now_ns: int, needed: bool, deviation: float | None) -> None:
        settings = self.settings
        assert self._since_ns is not None
        age_ns = now_ns - self._since_ns
        if self._verifying:
            # The first third is left out, because windows and filters still hold old values.
            if deviation is not None and age_ns >= settings.verify_ns // 3:
                self._after.add(deviation)
            if age_ns >= settings.verify_ns:
                self._conclude(now_ns, self._after.value)
        elif not self._latch.update(needed, now_ns):
            self._stop(f"{REMOVED}the cache channel has not needed them for a while")

    def _conclude(self, now_ns: int, after: float | None) -> None:
        if after is None:
            self._stop(f"{REMOVED}their effect could not be verified, no service showed it")
            return
        before = self._before.value or 0.0
        numbers = f"deviation {before:.2f} before, {after:.2f} with them"
        self._verifying = False
        if before - after >= DEAD_ZONE:
            self._backoff.reset()
            self._latch.update(needed=True, now_ns=now_ns)
            self._report(f"{HELPED}{numbers}")
            return
        pause_ns = round(self._backoff.next())
        self._not_before_ns = now_ns + pause_ns
        self._latch = HoldOffLatch(HOLD_NS)
        self._stop(f"{IN_VAIN}({numbers}); next try after {format_duration(pause_ns)}")

    def _stop(self, text: str) -> None:
        self.on = False
        self._verifying = False
        self._since_ns = None
        self._report(text)

    def _report(self, text: str) -> None:
        self.verdict = Verdict(subject=Knob.CORE_COOKIE, text=text)


def _obstacle(mode: CoreMode, *, possible: bool, yields: bool, services: bool) -> str:
    if mode is CoreMode.OFF:
        return "switched off by the configuration"
    if not possible:
        return "core scheduling cannot be used now"
    if not services:
        return "no latency-sensitive service is present"
    return "" if yields else "best-effort does not yield to services (sched-idle is off)"
