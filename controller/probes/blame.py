# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Blame from the kernel's matrix of (latency record, slot) to records by name.

There may be tens of thousands of pairs, and in a tick few of them gain anything: only those are
made anew. The others stay the same objects at the same place, by which the indicators know.
"""

import numpy as np
from numpy.typing import NDArray

from controller.model import Blame
from controller.probes.slots import View

__all__ = ("BlamePairs",)


class BlamePairs:
    """The pairs in which somebody ever had to wait, in the order in which they appeared.

    :param waits: the kernel's counters in ns, one row per latency record, one column per slot.
    """

    def __init__(self, waits: NDArray[np.uint64]) -> None:
        self._waits = waits
        # When the pair's owners got their places, and when it was looked at last.
        self._base = np.zeros_like(waits)
        self._seen = np.zeros_like(waits)
        self._place = np.full(waits.shape, -1, np.int32)
        self._pairs: list[Blame] = []
        self._complete = False

    def rebase(self, slot: int, record: int | None) -> None:
        """Count from now on for the new owners of *slot* and *record*."""
        self._base[:, slot] = self._waits[:, slot]
        if record is not None:
            self._base[record] = self._waits[record]
        self._complete = False

    def forget(self) -> None:
        """Take up all pairs anew with the next read, because somebody left."""
        self._complete = False

    def read(self, view: View) -> tuple[Blame, ...]:
        """Return the pairs of those in *view*, with what they gained since they are known."""
        area = (slice(view.rows), slice(view.used))
        waits, base, seen, places = (
            each[area] for each in (self._waits, self._base, self._seen, self._place)
        )
        if not self._complete:
            self._complete = True
            self._pairs.clear()
            seen[:] = base
            places[:] = -1
        rows, slots = np.nonzero(waits != seen)
        now = waits[rows, slots]
        seen[rows, slots] = now
        pairs, victims, culprits = self._pairs, view.victims, view.culprits
        for row, slot, wait_ns, place in zip(
            rows.tolist(),
            slots.tolist(),
            (now - base[rows, slots]).tolist(),
            places[rows, slots].tolist(),
            strict=True,
        ):
            victim, culprit = victims.get(row), culprits.get(slot)
            if victim is None or culprit is None:
                continue
            pair = Blame(victim, culprit[0], culprit[1], wait_ns)
            if place < 0:
                places[row, slot] = len(pairs)
                pairs.append(pair)
            else:
                pairs[place] = pair
        return tuple(pairs)
