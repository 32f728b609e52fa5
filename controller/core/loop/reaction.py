# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a service reacted to what was changed, and how long to wait after a change in vain.

Rise, release and the trial of a squeeze change a demand and ask this. All take a change of the
smoothed deviation by three tenths: a smaller part of the suffering is not worth what it costs.
"""

__all__ = ("SMOOTH_S", "Backoff", "has_fallen", "has_risen")

# Time constant of the low-pass in front: about one window, and less than what a reader notices.
SMOOTH_S = 1.0
_PART = 0.3
# A rise by less is noise: twice that of a window of a second. A fall ends where the loops decide
# by themselves, so it needs no such bound.
_NOISE = 0.5


def has_risen(deviation: float, before: float) -> bool:
    """Return whether a service suffers more than *before*, both as smoothed deviations."""
    return deviation > max(before + _NOISE, before / (1 - _PART))


def has_fallen(deviation: float, before: float) -> bool:
    """Return whether a service suffers less than *before*, both as smoothed deviations."""
    return deviation < (1 - _PART) * before


class Backoff:
    """A pause that doubles from *first* to *longest*, in the caller's unit of time.

    ``pause`` is the last one, 0 at the begin.
    """

    __slots__ = ("_first", "_longest", "pause")

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self.pause = 0.0

    def next(self) -> float:
        """Return the next pause."""
        self.pause = min(self._longest, max(self._first, 2 * self.pause))
        return self.pause

    def reset(self) -> None:
        """Let the next pause be the first again."""
        self.pause = 0.0
