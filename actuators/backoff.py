# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PURE: when a knob that the kernel refused may be tried again."""

from typing import NamedTuple

from controller.model import Knob, Target
from controller.units import NS_PER_SEC

__all__ = ("Backoff", "Refusal")

_FIRST_NS = 1 * NS_PER_SEC
_LONGEST_NS = 60 * NS_PER_SEC


class Refusal(NamedTuple):
    """The last refusal of a knob and how many there were without a success in between."""

    times: int
    retry_at_ns: int
    errno: int
    message: str


class Backoff:
    """Refusals by target and knob; 1 s after the first, doubling up to 60 s."""

    def __init__(self) -> None:
        self._refusals: dict[tuple[Target, Knob], Refusal] = {}

    def waiting(self, target: Target, knob: Knob, now_ns: int) -> Refusal | None:
        """Return the refusal for which the knob still has to wait, if any."""
        refusal = self._refusals.get((target, knob))
        return refusal if refusal is not None and now_ns < refusal.retry_at_ns else None

    def refused(self, target: Target, knob: Knob, now_ns: int, errno: int, message: str) -> int:
        """Count a refusal and return how many there were in a row."""
        before = self._refusals.get((target, knob))
        times = 1 if before is None else before.times + 1
        wait_ns = min(_FIRST_NS << min(times - 1, 10), _LONGEST_NS)
        self._refusals[target, knob] = Refusal(times, now_ns + wait_ns, errno, message)
        return times

    def clear(self, target: Target, knob: Knob) -> None:
        """Forget the refusals of a knob that was written, or whose target left."""
        self._refusals.pop((target, knob), None)
