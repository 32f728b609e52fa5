# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which knobs this host has, asked now and then: the answers come from files that may be long."""

from collections.abc import Mapping
import time

from actuators.base import Actuator
from controller.model import Knob

__all__ = ("Support",)

_AGAIN_S = 5.0


class Support:
    """The actuators' own answers, at most five seconds old."""

    def __init__(self, actuators: Mapping[Knob, Actuator]) -> None:
        self._actuators = actuators
        self._answers: dict[Knob, tuple[float, bool]] = {}

    def has(self, knob: Knob) -> bool:
        """Return whether this host has *knob*."""
        now = time.monotonic()
        asked, answer = self._answers.get(knob, (-_AGAIN_S, False))
        if now - asked >= _AGAIN_S:
            answer = self._actuators[knob].supported() is None
            self._answers[knob] = (now, answer)
        return answer

    def forget(self) -> None:
        """Ask anew: something was made or removed that knobs live in."""
        self._answers.clear()
