# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Queueing delay and loss of the services' packets in the shaped links; equal for all services.

The delay of a packet follows from Little's law: mean backlog divided by the rate of sending. This
holds whether the queue is always or only sometimes full, and does not need the speed of the link.
"""

from collections.abc import Iterable
from typing import NamedTuple

from controller.core.decision import Indicator, IndicatorStatus
from controller.core.indicators.measurement import STALE, Measured
from controller.core.indicators.windows import Delta, DeltaWindow
from controller.core.model import IndicatorName, LinkSample, QosClass, Target
from controller.core.settings import IndicatorSpec

__all__ = ("LINKED", "LinkWindows")

LINKED = frozenset({IndicatorName.NET_BACKLOG, IndicatorName.NET_DROPS})


class _Side(NamedTuple):
    """One direction of a link."""

    link: Target
    ingress: bool


class LinkWindows:
    """Windows over the counters of the latency-sensitive tier, one per link and direction.

    The counters of a window are packets dropped, packets sent, bytes sent, and the integral of the
    backlog over time in byte-nanoseconds. They are kept apart, because one that shrinks shows that
    the tree was created again. ``known``: there has been a link.
    """

    __slots__ = ("_backlogs", "_last_ns", "_windows", "known")

    def __init__(self) -> None:
        self.known = False
        self._last_ns = 0
        self._backlogs: dict[_Side, int] = {}
        self._windows: dict[_Side, DeltaWindow] = {}

    def update(
        self, links: Iterable[LinkSample], time_ns: int, longest_ns: int, rebase: bool
    ) -> None:
        """Take the samples of one tick.

        Enough of them is kept for windows of *longest_ns*. *rebase* empties the windows, as is
        needed after a gap.
        """
        dt_ns, self._last_ns = time_ns - self._last_ns, time_ns
        windows: dict[_Side, DeltaWindow] = {}
        backlogs: dict[_Side, int] = {}
        for each in links:
            if each.tier != QosClass.LS:
                continue
            side = _Side(each.link, each.ingress)
            backlogs[side] = self._backlogs.get(side, 0) + each.backlog_bytes * dt_ns
            window = windows[side] = self._windows.get(side) or DeltaWindow()
            window.keep_for(longest_ns)
            if rebase:
                window.clear()
            counts = (each.drops, each.sent_packets, each.sent_bytes, backlogs[side])
            window.push(time_ns, counts)
        self.known = self.known or bool(windows)
        self._backlogs, self._windows = backlogs, windows

    def indicator(self, service: str, spec: IndicatorSpec) -> Indicator | None:
        """Return the value of *spec* (one of ``LINKED``) of the worst link and direction.

        ``None`` if there has never been a link.
        """
        if not self.known:
            return None
        status, worst = IndicatorStatus.STALE, STALE
        for window in self._windows.values():
            side = _measure(window, spec)
            if side.status is IndicatorStatus.FRESH or status is IndicatorStatus.STALE:
                status = side.status
            if side.value is not None and (worst.value is None or side.value > worst.value):
                worst = side
        return Indicator(
            service=service,
            name=spec.name,
            value=worst.value,
            samples=worst.samples,
            status=status,
        )


def _measure(window: DeltaWindow, spec: IndicatorSpec) -> Measured:
    delta = window.read(spec.window_ns, spec.min_samples)
    if delta is None:
        return Measured(IndicatorStatus.FRESH)
    drops, sent, _, backlog = delta.counts
    offered = drops + sent
    if offered == 0 and backlog == 0:
        return Measured(IndicatorStatus.IDLE)
    value = _wait_ns(delta) if spec.name is IndicatorName.NET_BACKLOG else _loss_ratio(delta)
    enough = offered >= spec.min_samples
    return Measured(IndicatorStatus.FRESH, value if enough else None, offered)


def _wait_ns(delta: Delta) -> float:
    _, _, sent_bytes, backlog = delta.counts
    # Waits longer than the window cannot be measured, also when no packet was sent.
    return min(delta.span_ns, backlog / sent_bytes) if sent_bytes else float(delta.span_ns)


def _loss_ratio(delta: Delta) -> float:
    drops, sent, _, _ = delta.counts
    return drops / (drops + sent) if drops + sent else 0.0
