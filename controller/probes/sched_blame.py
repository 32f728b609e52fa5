# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Turns the kernel's blame matrix (latency record x slot, in ns) into ``Blame`` records.

The matrix may have tens of thousands of non-zero pairs, and in a tick few of them grow: only those
get a new record. The others stay the same objects at the same index, so that the indicators can
skip them by identity. A pair that did not grow for a minute is dropped and starts at zero if it
grows again; otherwise the list would approach all combinations of victim and culprit.
"""

import numpy as np
from numpy.typing import NDArray

from controller.core.model import Blame
from controller.core.units import NS_PER_SEC
from controller.probes.slots import Indices, View

__all__ = ("BlamePairs",)

_DROP_AFTER_NS = 60 * NS_PER_SEC


class BlamePairs:
    """The pairs with waits, in the order in which they appeared.

    :param waits: the kernel's counters in ns, one row per latency record, one column per slot.
    """

    def __init__(self, waits: NDArray[np.uint64]) -> None:
        self._waits = waits
        # The counters when the pair was listed or its slot and record were assigned, and at the
        # last poll.
        # Not zeros_like, which writes to every page: most pairs stay at zero and take no memory.
        self._base = np.zeros(waits.shape, waits.dtype)
        self._seen = np.zeros(waits.shape, waits.dtype)
        # Place of the pair in the list, from 1 on; 0: not listed.
        self._place = np.zeros(waits.shape, np.int32)
        # Whether the pair grew since idle pairs were dropped last.
        self._active = np.zeros(waits.shape, np.bool_)
        self._dropped_ns = 0
        self._pairs: list[Blame] = []
        # Slots and records of workloads that were removed since the last poll.
        self._removed: list[tuple[int, int | None]] = []

    def rebase(self, slot: int | None, record: int | None) -> None:
        """Start at zero for a workload that got *slot* and *record*, or one of them."""
        if slot is not None:
            waits = self._waits[:, slot]
            # Only what differs, for the same reason.
            rows = ((self._base[:, slot] != waits) | (self._seen[:, slot] != waits)).nonzero()
            self._base[rows, slot] = self._seen[rows, slot] = waits[rows]
        if record is not None:
            self._base[record] = self._seen[record] = self._waits[record]

    def remove(self, slot: int, record: int | None) -> None:
        """Drop the pairs of the workload that had *slot* and *record*, at the next poll."""
        self._removed.append((slot, record))

    def poll(self, view: View, now_ns: int, waiting: Indices) -> tuple[Blame, ...]:
        """Return the pairs of the members of *view*, with their waits in ns since listed.

        :param waiting: the latency records whose rows may have grown since the last poll.
        """
        area = (slice(view.record_count), slice(view.slot_count))
        waits, base, seen, places = (
            each[area] for each in (self._waits, self._base, self._seen, self._place)
        )
        if self._removed:
            self._drop_removed()
        # On one dimension, because nonzero takes twenty times as long on two.
        (grown,) = (waits[waiting] != seen[waiting]).ravel().nonzero()
        indices, slots = np.divmod(grown, view.slot_count)
        rows = waiting[indices]
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
            if place:
                pairs[place - 1] = pair
            else:
                pairs.append(pair)
                places[row, slot] = len(pairs)
        if now_ns - self._dropped_ns >= _DROP_AFTER_NS:
            # After the update, so that a pair that grew in this very tick is kept with its growth.
            self._dropped_ns = now_ns
            self._drop_idle()
        return tuple(self._pairs)

    def _drop_removed(self) -> None:
        listed = self._place > 0
        for slot, record in self._removed:
            listed[:, slot] = False
            if record is not None:
                listed[record] = False
        self._removed.clear()
        self._keep(listed)

    def _drop_idle(self) -> None:
        listed = self._place > 0
        idle = listed & ~self._active
        self._base[idle] = self._seen[idle]
        self._keep(listed & self._active)
        self._active[:] = False

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        """Keep only these pairs in the list, in their present order."""
        cells = np.flatnonzero(kept)  # on one dimension, as in poll
        places = self._place.reshape(-1)
        cells = cells[np.argsort(places[cells])]
        self._pairs = [self._pairs[place] for place in (places[cells] - 1).tolist()]
        places[np.flatnonzero(places)] = 0
        places[cells] = np.arange(1, len(cells) + 1)
