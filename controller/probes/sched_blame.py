# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Blame from the kernel's matrix of (latency record, slot) to records by name.

There may be tens of thousands of pairs, and in a tick few of them gain anything: only those are
made anew. The others stay the same objects at the same place, by which the indicators know. A
pair that gained nothing for a minute is left out, and begins at zero should it come back: else
the list would grow until everybody had waited for everybody.
"""

import numpy as np
from numpy.typing import NDArray

from controller.core.model import Blame
from controller.core.units import NS_PER_SEC
from controller.probes.slots import Indices, View

__all__ = ("BlamePairs",)

_FORGET_NS = 60 * NS_PER_SEC


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
        # Which ones gained something since the last clearing up.
        self._active = np.zeros(waits.shape, np.bool_)
        self._cleared_ns = 0
        self._pairs: list[Blame] = []
        # Slots and records whose owners left since the last read.
        self._left: list[tuple[int, int | None]] = []

    def rebase(self, slot: int, record: int | None) -> None:
        """Count from now on for the new owners of *slot* and *record*."""
        self._base[:, slot] = self._seen[:, slot] = self._waits[:, slot]
        if record is not None:
            self._base[record] = self._seen[record] = self._waits[record]

    def leave_out(self, slot: int, record: int | None) -> None:
        """Leave out the pairs of the owner of *slot* and *record*, who left."""
        self._left.append((slot, record))

    def poll(self, view: View, now_ns: int, waiting: Indices) -> tuple[Blame, ...]:
        """Return the pairs of those in *view*, with what they gained since they are listed.

        :param waiting: the latency records that may have gained something since the last read.
        """
        area = (slice(view.rows), slice(view.used))
        waits, base, seen, places = (
            each[area] for each in (self._waits, self._base, self._seen, self._place)
        )
        if self._left:
            self._drop_left()
        # In two dimensions nonzero takes twenty times as long.
        (gained,) = (waits[waiting] != seen[waiting]).ravel().nonzero()
        found, slots = np.divmod(gained, view.used)
        rows = waiting[found]
        now = waits[rows, slots]
        seen[rows, slots] = now
        self._active[rows, slots] = True
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
        if now_ns - self._cleared_ns >= _FORGET_NS:
            # At the end: who comes back in the tick that leaves him out would lose what he gained.
            self._cleared_ns = now_ns
            self._clear_up()
        return tuple(self._pairs)

    def _drop_left(self) -> None:
        listed = self._place >= 0
        for slot, record in self._left:
            listed[:, slot] = False
            if record is not None:
                listed[record] = False
        self._left.clear()
        self._keep(listed)

    def _clear_up(self) -> None:
        listed = self._place >= 0
        still = listed & ~self._active
        self._base[still] = self._seen[still]
        self._keep(listed & self._active)
        self._active[:] = False

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        """List these pairs and no others, in the order in which they are listed now."""
        cells = np.flatnonzero(kept)  # as above
        places = self._place.reshape(-1)
        cells = cells[np.argsort(places[cells])]
        self._pairs = [self._pairs[place] for place in places[cells].tolist()]
        places[:] = -1
        places[cells] = np.arange(len(cells))
