# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The last rung of the cache channel: the quota, which belongs to the cpu channel."""

from controller.control.ladder import Scene
from controller.decision import Action
from controller.model import Knob
from controller.settings import KnobLimits

__all__ = ("QuotaPart",)


class QuotaPart:
    """Remembers how much of the quota's range is asked for; the cpu channel grants it."""

    def __init__(self) -> None:
        self.knob = Knob.CPU_QUOTA
        self.part = 0.0

    def usable(self, scene: Scene) -> bool:
        """Return whether there is a workload that can be limited."""
        book, now_ns = scene.book, scene.now_ns
        return any(book.is_movable(each, self.knob, now_ns) for each in scene.roster.best_effort)

    def rescale(self, part: float, limits: KnobLimits, scene: Scene) -> float:
        """Return *part*: the scale of this rung never changes."""
        return part

    def settle(self, part: float, limits: KnobLimits, scene: Scene) -> float | None:
        """Take *part*; the quota can take any."""
        self.part = part
        return part if part > 0 else None

    def actions(self, scene: Scene, reason: str) -> list[Action]:
        """Return nothing: the quota's writes are the cpu channel's."""
        return []

    def release(self) -> None:
        """Ask for nothing."""
        self.part = 0.0

    def describe(self) -> str:
        """Return how far the quota is asked to go."""
        return f"{self.part:.0%} of the way to the quota's floor" if self.part else "no quota"
