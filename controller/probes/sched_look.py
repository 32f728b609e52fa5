# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whether services wait for CPUs by more than given limits since the last tick.

Read from the kernel's arrays, with work that depends on the number of services alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.core.indicators.measurement import BUCKETS, LOWER_NS, UPPER_NS
from controller.core.looks import TOLD, Quiet, RatioLimit, WaitLimit
from controller.probes.slots import View

__all__ = ("LimitRows", "WaitLook")

# Words of ``struct account``.
_ONCPU, _INFLICTED, _WAITS = 0, 2, 3
_UPPER_NS = np.array(UPPER_NS, np.float64)
_MIDDLE_NS = (np.array(LOWER_NS, np.float64) + _UPPER_NS) / 2

_Floats = NDArray[np.float64]


class LimitRows(NamedTuple):
    """The limits of what is measured: latency record, sweet point, ``WaitLimit.by_time``."""

    records: NDArray[np.intp]
    sweet_ns: _Floats
    by_time: NDArray[np.bool_]


class WaitLook:
    """Compares what the kernel has counted since the last tick with the limits of a ``Quiet``.

    :param accounts: the kernel's words by slot and CPU, as many as *totals* has.
    :param latencies: the kernel's buckets by latency record and CPU.
    :param totals: the words by slot, summed over CPUs, as of the last tick.
    :param waits: the buckets by record, summed over CPUs, as of the last tick in which they grew.
    """

    def __init__(
        self,
        accounts: NDArray[np.int64],
        latencies: NDArray[np.uint32],
        totals: NDArray[np.int64],
        waits: NDArray[np.uint32],
    ) -> None:
        self._accounts = accounts
        self._latencies = latencies
        self._totals = totals
        self._waits = waits
        # Waits of each slot as of the last tick, and per ns between the last two.
        self._counted = totals[:, _WAITS].copy()
        self._per_ns = np.zeros(len(totals))
        self._time_ns = 0
        # What is being compared since the last tick, and what the rows were made for.
        self._compared: tuple[View, Quiet] | None = None
        self._arranged: tuple[View, Sequence[WaitLimit], Sequence[RatioLimit]] | None = None

    def rebase(self, now_ns: int) -> None:
        """Take the end of a tick at *now_ns*."""
        counted = self._totals[:, _WAITS].copy()
        self._per_ns = (counted - self._counted) / max(1, now_ns - self._time_ns)
        self._counted = counted
        self._time_ns = now_ns
        self._compared = None

    def exceeds(self, view: View, quiet: Quiet) -> bool:
        """Return whether a workload of *view* has exceeded a limit of *quiet*."""
        self._compare(view, quiet)
        return self._waits_long(view.record_count) or self._waits_much()

    def left(self, view: View, quiet: Quiet) -> tuple[LimitRows, _Floats]:
        """Return the limits of *quiet*, and what may come after the last look until it is told.

        Each limit of a look counts ``TOLD`` times. The rows are the same object until they change.
        """
        self._compare(view, quiet)
        allowed = np.maximum(self._allowed, self._per_wait * self._number)
        return self._rows, TOLD * allowed - self._score

    def _compare(self, view: View, quiet: Quiet) -> None:
        if (view, quiet) != self._compared:
            if (view, quiet.waits, quiet.ratios) != self._arranged:
                self._arrange(view, quiet.waits, quiet.ratios)
            self._begin()
            self._compared = view, quiet

    def _arrange(
        self, view: View, limits: Sequence[WaitLimit], bounds: Sequence[RatioLimit]
    ) -> None:
        """Make a row for each limit of a workload that is measured."""
        self._arranged = view, limits, bounds
        members = {member.cgroup: member for member in view.sensitive}
        rows = [(members[each.cgroup], each) for each in limits if each.cgroup in members]
        self._slots = np.array([member.slot for member, _ in rows], np.intp)
        self._rows = LimitRows(
            np.array([member.record for member, _ in rows], np.intp),
            np.array([each.sweet_ns for _, each in rows], np.float64),
            np.array([each.by_time for _, each in rows], np.bool_),
        )
        _, sweet_ns, by_time = self._rows
        beyond = np.subtract.outer(-sweet_ns, -_MIDDLE_NS)
        longer = np.less.outer(sweet_ns, _UPPER_NS)
        self._weights = np.where(by_time[:, None], np.maximum(beyond, 0.0), longer)
        shares = np.array([each.share for _, each in rows])
        windows_ns = np.array([each.window_ns for _, each in rows], np.float64)
        self._share_of_window = shares * windows_ns
        self._per_wait = np.where(by_time, 0.0, shares)
        self._of_time = np.where(by_time, self._share_of_window, 0.0)
        bounded = [(members[each.cgroup], each) for each in bounds if each.cgroup in members]
        self._bounded = np.array([member.slot for member, _ in bounded], np.intp)
        self._ratios = np.array([each.ratio for _, each in bounded])
        self._idle_ns = np.array([each.idle_ns for _, each in bounded])

    def _begin(self) -> None:
        """Compute what stays the same until the next tick."""
        # A window at the rate of the last tick holds more waits than the time since then.
        usual = self._per_ns[self._slots] * self._share_of_window
        self._allowed = np.where(self._of_time > 0, self._of_time, usual)
        self._before = self._waits[self._rows.records]
        self._score = self._number = np.zeros(len(self._slots))
        self._inflicted_ns = self._totals[self._bounded, _INFLICTED] + self._ratios * self._idle_ns

    def _waits_long(self, records: int) -> bool:
        now = self._latencies[:records, :, :BUCKETS].sum(axis=1, dtype=np.uint32)
        # The kernel's 32-bit buckets wrap around; so does the unsigned difference.
        grown = now[self._rows.records] - self._before
        self._score = score = np.einsum("ij,ij->i", grown, self._weights)
        high = score > self._allowed
        if not high.any():
            return False
        self._number = grown.sum(axis=1, dtype=np.float64)
        return bool((high & (score > self._per_wait * self._number)).any())

    def _waits_much(self) -> bool:
        """Return whether a workload waits for too large a part of the time that it wants."""
        if not len(self._bounded):  # few profiles have such a sweet point
            return False
        words = self._accounts[self._bounded]
        high = words[:, :, _INFLICTED].sum(axis=1) > self._inflicted_ns
        if not high.any():
            return False
        grown = words.sum(axis=1) - self._totals[self._bounded]
        inflicted = grown[:, _INFLICTED]
        wanted = np.maximum(grown[:, _ONCPU], 0) + inflicted
        return bool(((wanted >= self._idle_ns) & (inflicted > self._ratios * wanted)).any())
