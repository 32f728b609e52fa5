# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Looks: whether a tick is needed, asked at each moment at which one is due.

``core/looks.py`` has the rule. What it asks for is read here, without a file: one stat(2) for the
pauses, flags and counters of other threads, and the arrays of the sched probe.
"""

from controller.agent.node import Node
from controller.agent.pauses import Pauses
from controller.agent.reload import ConfigFollower
from controller.core.looks import Quiet, Seen, TickReason, reason_to_tick
from controller.core.model import Snapshot
from controller.telemetry.report import PublishedState

__all__ = ("Looks",)


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
        self._quiet = Quiet()
        self._tick_ns = self._look_ns = 0
        self._answers = 0

    def expect(self, reason: TickReason) -> None:
        """Let the next look make a tick, for *reason*."""
        self._quiet = Quiet(reason)

    def reason(self, now_ns: int, period_ns: int) -> TickReason | None:
        """Return why a tick is made now; ``None``: it is left out.

        This look was due *period_ns* after the last one.
        """
        if self._always is not None:
            return self._always
        if not self._follower.config.looks or self._node.sampler.sched is None:
            return TickReason.OFF
        seen = Seen(
            period_ns=period_ns,
            since_tick_ns=now_ns - self._tick_ns,
            since_look_ns=now_ns - self._look_ns,
            event=None if self._quiet.reason else self._event(now_ns),
        )
        found = reason_to_tick(self._quiet, seen, self._node.sampler.waits_more)
        if found is None:
            self._look_ns = now_ns
        return found

    def _event(self, now_ns: int) -> TickReason | None:
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
