# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Looks: whether a tick is needed, asked at each moment at which one is due.

``schedule.py`` has the rule. What it asks for is read here, without a file: one stat(2) for the
pauses, flags and counters of other threads, and the arrays of the sched probe.

Between two due moments the kernel may tell once that a service waits too much, and once that the
pressure of one passes its sweet point. The thread of the services' sources may tell once that a
figure came (``arm``). The same question is asked then.
"""

from collections.abc import Collection
import signal
import threading

from controller.agent.node import Node
from controller.agent.pauses import Pauses
from controller.agent.reload import ConfigFollower
from controller.agent.schedule import Seen, reason_to_tick
from controller.core.looks import Quiet, Strain, TickReason
from controller.core.model import Snapshot
from controller.probes.sched_wake import WaitAlarm
from controller.telemetry.report import PublishedState

__all__ = ("FIGURE", "Looks")

# The signal to the control thread, which blocks it and waits for it between two ticks.
FIGURE = signal.SIGRTMIN + 1


class FigureAlarm:
    """Sends ``FIGURE`` to the thread that made it, for the first figure after each ``arm``."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._is_armed = False

    def arm(self) -> None:
        """Send a signal for the next figure."""
        self._is_armed = True

    def ring(self) -> None:
        """Note that a figure came; for the thread of the sources."""
        if self._is_armed:
            self._is_armed = False
            signal.pthread_kill(self._thread, FIGURE)


class Looks:
    """Decides at each due moment whether a tick is made. For the control thread.

    :param always: why a tick is made each time, whatever a look would find; ``None``: looks decide.
    """

    def __init__(
        self,
        node: Node,
        follower: ConfigFollower,
        pauses: Pauses,
        published: PublishedState,
        always: TickReason | None,
    ) -> None:
        self._node = node
        self._follower = follower
        self._pauses = pauses
        self._published = published
        self._always = always
        self._figures = FigureAlarm()
        node.services.on_figure = self._figures.ring
        self._quiet = Quiet()
        self._tick_ns = self._look_ns = 0
        self._answers = 0

    def expect(self, reason: TickReason) -> None:
        """Let the next look make a tick, for *reason*."""
        self._quiet = Quiet(reason)

    def reason(self, now_ns: int, period_ns: int, *, woken: bool = False) -> TickReason | None:
        """Return why a tick is made now; ``None``: it is left out.

        This look was due *period_ns* after the last one. If *woken*, it was not due: a message of
        the kernel or a figure came.
        """
        if woken and self._alarm is not None:
            self._alarm.clear()
        if self._always is not None:
            return self._always
        if not self._is_on:
            self._node.sampler.pressure_alarm.close()
            return TickReason.OFF
        if woken and self._quiet.reason:  # the next due moment has a tick
            return None
        seen = Seen(
            period_ns=period_ns,
            since_tick_ns=now_ns - self._tick_ns,
            since_look_ns=now_ns - self._look_ns,
            event=None if self._quiet.reason else self._event(now_ns),
            woken=woken,
        )
        found = reason_to_tick(self._quiet, seen, self._node.sampler.waits_more)
        if woken:
            return TickReason.WOKEN if found is TickReason.WAITS else found
        if found is None:
            self._look_ns = now_ns
        return found

    @property
    def _is_on(self) -> bool:
        return self._follower.config.looks and self._node.sampler.sched is not None

    @property
    def _alarm(self) -> WaitAlarm | None:
        sched = self._node.sampler.sched
        return None if sched is None else sched.alarm

    @property
    def alarms(self) -> tuple[int | None, int | None]:
        """The files that are readable after messages of the kernel, of waits and of pressure."""
        waits = None if self._alarm is None else self._alarm.fd
        return waits, self._node.sampler.pressure_alarm.fd

    def hear(self, readable: Collection[int]) -> None:
        """Take which ``alarms`` were *readable*."""
        alarm = self._node.sampler.pressure_alarm
        if alarm.fd in readable:
            alarm.hear()

    def arm(self) -> None:
        """After a due moment: let waits, pressure and a figure cause one look each before the next.

        So these looks are at most thrice those that are due, whatever runs on the host. Not after
        the one that follows such a look, which comes soon. While a service suffers each due moment
        has a tick, and there is none between them.
        """
        sched = self._node.sampler.sched
        if sched is not None and self._always is None and self._is_on and not self._quiet.reason:
            sched.arm(self._quiet)
            self._node.sampler.pressure_alarm.arm(self._quiet.pressures, self._look_ns)
            self._figures.arm()

    def _event(self, now_ns: int) -> TickReason | None:
        if self._node.sampler.pressure_alarm.has_fired:
            return TickReason.PRESSURE
        if self._published.is_asked:
            return TickReason.REQUEST
        if self._node.services.answers != self._answers:
            return TickReason.FIGURE
        if self._node.follows_closely:
            return TickReason.KNOBS
        if self._pauses.poll() != self._node.pause:
            return TickReason.PAUSE
        return TickReason.WORKLOADS if self._follower.has_news(now_ns) else None

    @property
    def strain(self) -> Strain:
        """How the worst service was in the last tick."""
        return self._quiet.strain

    @property
    def left_out_ns(self) -> int:
        """How long ticks have been left out since the last one."""
        return self._look_ns - self._tick_ns

    def begin_tick(self) -> None:
        """Note what a tick will take that begins now."""
        self._published.is_asked = False
        self._answers = self._node.services.answers

    def end_tick(self, snapshot: Snapshot, quiet: Quiet) -> None:
        """Take the *snapshot* of a tick, and when the next one may be left out."""
        self._quiet = quiet
        self._tick_ns = self._look_ns = snapshot.time_ns
