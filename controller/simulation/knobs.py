# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The kernel's side of a simulated node: knobs that can be read, written and refused."""

from collections.abc import Iterable
from errno import EINVAL

from controller.decision import Action, Failure, Outcome
from controller.model import Knob, KnobReading, KnobValue, Target

__all__ = ("KnobTable",)


class KnobTable:
    """What every knob is set to. ``refused`` are those that the kernel will not change."""

    def __init__(self) -> None:
        self.refused: set[tuple[int, Knob]] = set()
        self._targets: dict[tuple[int, Knob], Target] = {}
        self._values: dict[tuple[int, Knob], KnobValue] = {}

    def add(self, target: Target, knob: Knob, value: KnobValue) -> None:
        """Let there be a knob."""
        self._targets[target.id, knob] = target
        self._values[target.id, knob] = value

    def remove(self, id_: int) -> None:
        """Let a target vanish, its knobs with it."""
        for key in [key for key in self._values if key[0] == id_]:
            del self._values[key], self._targets[key]

    def value(self, id_: int, knob: Knob) -> KnobValue:
        """Return what a knob is set to."""
        return self._values[id_, knob]

    def write(self, id_: int, knob: Knob, value: KnobValue) -> None:
        """Set a knob as somebody else would."""
        self._values[id_, knob] = value

    def execute(self, actions: Iterable[Action]) -> tuple[Outcome, ...]:
        """Write knobs; a target that left is gone, one in ``refused`` gets EINVAL."""
        return tuple(map(self._execute, actions))

    def readings(self) -> tuple[KnobReading, ...]:
        """Return every knob as read back."""
        return tuple(
            KnobReading(self._targets[key], key[1], value) for key, value in self._values.items()
        )

    def _execute(self, action: Action) -> Outcome:
        key = (action.target.id, action.knob)
        if key not in self._values:
            return Outcome(action=action, applied=None, failure=Failure.GONE)
        if key in self.refused:
            applied = self._values[key]
            return Outcome(action=action, applied=applied, failure=Failure.REFUSED, errno=EINVAL)
        self._values[key] = action.value
        return Outcome(action=action, applied=action.value)
