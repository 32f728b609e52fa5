# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Missing data: hold for a few ticks, then go to the safe state."""

from controller.decision import ChannelState

__all__ = ("StaleGuard",)


class StaleGuard:
    """Counts the ticks without data of one source."""

    __slots__ = ("_ticks", "ticks")

    def __init__(self, ticks: int) -> None:
        """*ticks* is how many are bridged by holding."""
        self.ticks = ticks
        self._ticks = 0

    def update(self, stale: bool) -> ChannelState:
        """Return FREE with data, HOLD for the first ticks without, then SAFE."""
        self._ticks = self._ticks + 1 if stale else 0
        if self._ticks == 0:
            return ChannelState.FREE
        return ChannelState.HOLD if self._ticks <= self.ticks else ChannelState.SAFE
