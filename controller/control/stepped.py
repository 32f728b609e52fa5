# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A rung whose knob has few settings: what cache ways, memory bandwidth and weights share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from controller.control.ladder import Scene
from controller.control.steps import Steps, moved
from controller.control.strictness import is_stricter
from controller.decision import Action
from controller.model import Knob, KnobValue, Target, TargetKind
from controller.settings import KnobLimits
from controller.units import NS_PER_SEC

__all__ = ("SteppedRung",)

_LONGEST_HOLD_NS = 3600 * NS_PER_SEC


class SteppedRung(ABC):
    """Moves one knob of all its targets through the same settings, see ``Steps``.

    ``part`` is the part of the demand that the setting in force would satisfy.
    """

    def __init__(self, knob: Knob, hold_ns: int) -> None:
        self.knob = knob
        self.part = 0.0
        self._steps = Steps(hold_ns, _LONGEST_HOLD_NS)
        self._scale: Sequence[float] = (0.0,)
        self._written: int | None = None

    @property
    def level(self) -> int:
        """The setting in force, 0 for free."""
        return self._steps.level

    def usable(self, scene: Scene) -> bool:
        """Return whether there is a target whose knob can be moved now."""
        return any(_is_ours(each, scene) for each in scene.book.movable(self.knob, scene.now_ns))

    def rescale(self, part: float, limits: KnobLimits, scene: Scene) -> float:
        """Return the place of *part* on the scale as it is known now."""
        before, self._scale = self._scale, self._edges(limits, scene)
        return moved(part, before, self._scale)

    def settle(self, part: float, limits: KnobLimits, scene: Scene) -> float | None:
        """Choose the setting for *part*."""
        settled = self._steps.settle(part, self._scale, scene.now_ns)
        self.part = self._scale[self.level] if self.level else 0.0
        return settled

    def actions(self, scene: Scene, reason: str) -> list[Action]:
        """Return what has to be written; nothing while the setting stays."""
        level = self.level
        if level == self._written and not scene.anew:
            return []
        self._written = level
        actions = []
        for target in scene.book.targets(self.knob):
            if not _is_ours(target, scene):
                continue
            key = (target.scope, target.id, self.knob)
            original = scene.book.original(*key)
            value = None if original is None or not level else self._value(original)
            stricter = (
                value is not None
                and original is not None
                and is_stricter(self.knob, value, original)
            )
            if value is not None and stricter:
                action = scene.book.request(*key, value, reason, scene.now_ns)
            else:
                action = scene.book.restore(*key, reason, scene.now_ns)
            if action is not None:
                actions.append(action)
        return actions

    def release(self) -> None:
        """Go free at once."""
        self._steps.release()
        self.part = 0.0

    @abstractmethod
    def describe(self) -> str:
        """Return the setting in a few words."""

    @abstractmethod
    def _edges(self, limits: KnobLimits, scene: Scene) -> Sequence[float]:
        """Return the largest part that each setting satisfies, from free (0) to the stop (1)."""

    @abstractmethod
    def _value(self, original: KnobValue) -> KnobValue:
        """Return what the setting in force is for a target that was at *original*."""


def _is_ours(target: Target, scene: Scene) -> bool:
    # Groups and links are best-effort's as a whole; a cgroup may have become somebody else's.
    return target.kind is not TargetKind.CGROUP or (target.scope, target.id) in (
        scene.roster.best_effort
    )
