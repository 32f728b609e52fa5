# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Several knobs of one target, read from one directory where they lie in the same.

To find a cgroup takes longer than to read a file in it, see ``kernfs``.
"""

from collections.abc import Iterable, Iterator
import contextlib

from actuators.base import Actuator, GoneError, RefusedError
from actuators.cgroup_knob import CgroupKnob
from actuators.cgroupfs import Cgroup
from controller.model import Knob, KnobValue, Target

__all__ = ("Found", "read_knobs")

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
