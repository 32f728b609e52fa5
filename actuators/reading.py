# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which knobs this host has, asked now and then: the answers come from files that may be long.

Several knobs of one target, read from one directory where they lie in the same.

To find a cgroup takes longer than to read a file in it, see ``kernfs``.
"""

from collections.abc import Iterable, Iterator, Mapping
import contextlib
import time

from actuators.base import Actuator, GoneError, RefusedError
from actuators.file_knob import CgroupKnob
from actuators.kernfs import Cgroup
from controller.core.model import Knob, KnobValue, Target

__all__ = (
    "Found",
    "Support",
    "read_knobs",
)

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
            answer = self._actuators[knob].unsupported_reason() is None
            self._answers[knob] = (now, answer)
        return answer

    def reset(self) -> None:
        """Ask anew: something was made or removed that knobs live in."""
        self._answers.clear()


# A knob's value, or why there is none.
Found = KnobValue | GoneError | RefusedError


def read_knobs(actuators: Iterable[Actuator], target: Target) -> Iterator[tuple[Knob, Found]]:
    """Yield what *actuators* find at *target*, all of which it concerns."""
    with contextlib.ExitStack() as stack:
        opened: dict[object, Cgroup] = {}
        for actuator in actuators:
            found: Found
            try:
                if isinstance(actuator, CgroupKnob):
                    if actuator.mount not in opened:
                        cgroup = stack.enter_context(actuator.open(target))
                        opened[actuator.mount] = cgroup
                    found = actuator.read_from(opened[actuator.mount])
                else:
                    found = actuator.read(target)
            except (GoneError, RefusedError) as error:
                found = error
            yield actuator.knob, found
