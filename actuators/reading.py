# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Reading of knobs: which of them the host supports, and all knobs of one target at once.

Both are optimisations of the executor. Whether a host supports a knob is answered from files
that may be long, so the answers are cached. Opening a cgroup takes longer than reading a file in
it (see ``kernfs``), so the knobs of one target share one open directory per mount.
"""

from collections.abc import Iterable, Iterator, Mapping
import contextlib
import time

from actuators.base import Actuator, GoneError, RefusedError
from actuators.file_knob import CgroupKnob
from actuators.kernfs import Cgroup
from controller.core.model import Knob, KnobValue, Target

__all__ = (
    "ReadResult",
    "SupportCache",
    "read_knobs",
)

_LIFETIME_S = 5.0


class SupportCache:
    """Cached results of ``Actuator.unsupported_reason``, at most five seconds old."""

    def __init__(self, actuators: Mapping[Knob, Actuator]) -> None:
        self._actuators = actuators
        self._answers: dict[Knob, tuple[float, bool]] = {}

    def has(self, knob: Knob) -> bool:
        """Return whether this host has *knob*."""
        now = time.monotonic()
        checked, answer = self._answers.get(knob, (-_LIFETIME_S, False))
        if now - checked >= _LIFETIME_S:
            answer = self._actuators[knob].unsupported_reason() is None
            self._answers[knob] = (now, answer)
        return answer

    def reset(self) -> None:
        """Drop all answers: an object that contains knobs was created or removed."""
        self._answers.clear()


# The value of a knob, or the reason why it could not be read.
ReadResult = KnobValue | GoneError | RefusedError


def read_knobs(actuators: Iterable[Actuator], target: Target) -> Iterator[tuple[Knob, ReadResult]]:
    """Yield the knobs of *target* with their present values or the errors of reading.

    :param actuators: of knobs that apply to *target*.
    """
    with contextlib.ExitStack() as stack:
        opened: dict[object, Cgroup] = {}
        for actuator in actuators:
            found: ReadResult
            try:
                if isinstance(actuator, CgroupKnob):
                    if actuator.mount not in opened:
                        cgroup = stack.enter_context(actuator.open(target))
                        opened[actuator.mount] = cgroup
                    found = actuator.read_checked(opened[actuator.mount])
                else:
                    found = actuator.read(target)
            except (GoneError, RefusedError) as error:
                found = error
            yield actuator.knob, found
