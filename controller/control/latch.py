# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A two-state protection: on at once, off only after it was not needed for a while."""

__all__ = ("Latch",)


class Latch:
    """Holds for *hold_ns* after the last need, twice as long each time it is needed again soon.

    A knob that jumps between two states must not follow a noisy signal: released too early it
    is needed again, and the pair becomes a cycle. The doubling ends at *longest_ns* and is
    forgotten once the latch stayed off for as long as it last held, and for *soon_ns*.
    """

    __slots__ = (
        "_first_ns",
        "_hold_ns",
        "_longest_ns",
        "_needed_ns",
        "_released_ns",
        "_soon_ns",
        "on",
    )

    def __init__(self, hold_ns: int, longest_ns: int, soon_ns: int = 0) -> None:
        self._soon_ns = soon_ns
        self._first_ns = hold_ns
        self._hold_ns = hold_ns
        self._longest_ns = longest_ns
        self._needed_ns = 0
        self._released_ns: int | None = None
        self.on = False

    def update(self, needed: bool, now_ns: int) -> bool:
        """Take whether it is *needed* at *now_ns* and return whether it is on."""
        if needed:
            if not self.on and self._released_ns is not None:
                soon = now_ns - self._released_ns < max(self._hold_ns, self._soon_ns)
                self._hold_ns = min(self._longest_ns, 2 * self._hold_ns) if soon else self._first_ns
            self._needed_ns = now_ns
            self.on = True
        elif self.on and now_ns - self._needed_ns >= self._hold_ns:
            self.on = False
            self._released_ns = now_ns
        return self.on
