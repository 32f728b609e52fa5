# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A clock that several processes share and that runs faster than time."""

from dataclasses import dataclass
import time

__all__ = ("FastClock",)


@dataclass(frozen=True)
class FastClock:
    """Shows *base_s*, in seconds since 1970, at that time, and then runs *faster*."""

    base_s: float
    faster: float

    def now_s(self) -> float:
        """Return the time since 1970."""
        return self.base_s + (time.time() - self.base_s) * self.faster

    def monotonic_s(self) -> float:
        """Return the time of a clock that cannot be set."""
        return time.monotonic() * self.faster

    def real_s(self, seconds: float) -> float:
        """Return in how much real time *seconds* of this clock pass."""
        return seconds / self.faster

    def words(self) -> list[str]:
        """Return the words from which ``of_words`` makes this clock in another process."""
        return [repr(self.base_s), repr(self.faster)]

    @classmethod
    def of_words(cls, base_s: str, faster: str) -> "FastClock":
        return cls(float(base_s), float(faster))
