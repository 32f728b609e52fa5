# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The bandwidth that best-effort work gets at most on a link, in both directions.

The value is ``EGRESS INGRESS`` in bytes per second, 0 for a direction that is not shaped. The
class is changed in place: packets that wait in it stay. Where the link has the HTB of somebody
else and the configuration names a class of it, that class is moved in place of ours; then the
target's path is ``DEVICE/MAJOR:MINOR``.
"""

import errno
import re

from actuators.base import GoneError, RefusedError, Trace, Turn, no_trace
from actuators.tc.netlink import Netlink
from actuators.tc.shape import MAJOR, TIER_CEILING
from actuators.tc.tree import ifb_name
from controller.model import Action, Failure, Knob, KnobValue, Outcome, Target, TargetKind

__all__ = ("TcCeiling",)

_VALUE = re.compile(r"([0-9]{1,13}) ([0-9]{1,13})")
_CLASS = re.compile(r"[^/]+/([0-9a-f]{1,4}):([0-9a-f]{1,4})")
# Below that HTB's arithmetic has no meaning, and nobody could ever be served.
_LEAST_BYTES_PER_S = 1000


class TcCeiling:
    """``Knob.TC_CEILING``; implements ``base.Actuator``.

    :param netlink: shared with the other actuators of links.
    """

    knob = Knob.TC_CEILING
    kind = TargetKind.LINK
    checks_ancestors = False

    def __init__(self, netlink: Netlink) -> None:
        self._netlink = netlink

    def supported(self) -> str | None:
        """Return ``None``: a link that has the class has the knob."""
        return None

    def read(self, target: Target) -> KnobValue:
        """Return the ceilings; errors as ``base.Actuator.read``.

        Without the class that it belongs to, the knob is gone with it.
        """
        self._netlink.check(target)
        class_id = _class_id(target)
        ceilings = []
        for ifindex in self._devices(target):
            found = None if ifindex is None else self._netlink.classes(ifindex).get(class_id)
            ceilings.append(0 if found is None else found.ceil)
        if not any(ceilings):
            raise GoneError(f"{target.path} has no class {class_id >> 16:x}:{class_id & 0xFFFF:x}")
        return _text(ceilings)

    def apply(self, action: Action, trace: Trace = no_trace) -> Outcome:
        """Change the direction or directions that differ, egress first."""
        target = action.target
        wanted = _numbers(action.value)
        try:
            before = _numbers(self.read(target))
            _refuse_misfit(target, wanted, before)
            for ifindex, ceil, was in zip(self._devices(target), wanted, before, strict=True):
                if ifindex is not None and ceil != was:
                    trace(f"before write ceiling {ceil}")
                    self._netlink.change_ceiling(ifindex, _class_id(target), ceil)
                    trace(f"after write ceiling {ceil}")
            return Outcome(action=action, applied=self.read(target))
        except GoneError as error:
            return Outcome(action=action, applied=None, failure=Failure.GONE, message=str(error))
        except RefusedError as error:
            return Outcome(
                action=action,
                applied=self.read(target),
                failure=Failure.REFUSED,
                errno=error.errno,
                message=f"{target.path}: {error}",
            )

    def passes_through(self, previous: KnobValue, value: KnobValue) -> tuple[KnobValue, ...]:
        """Pure: egress is moved before ingress."""
        half_way = (_numbers(value)[0], _numbers(previous)[1])
        return (previous, _text(half_way), value)

    def same(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: equal; the kernel rounds no rate."""
        return expected == found

    def turn(self, previous: KnobValue, value: KnobValue) -> Turn:
        """Pure: no order among links."""
        return Turn.FREE

    def _devices(self, target: Target) -> tuple[int | None, int | None]:
        # Where the class is: for egress at the link, for ingress at our ifb.
        if _CLASS.fullmatch(target.path):
            return target.id, None
        ifb = self._netlink.find(ifb_name(target.id))
        return target.id, None if ifb is None else ifb.ifindex


def _class_id(target: Target) -> int:
    adopted = _CLASS.fullmatch(target.path)
    if adopted is None:
        return MAJOR << 16 | TIER_CEILING
    return int(adopted[1], 16) << 16 | int(adopted[2], 16)


def _refuse_misfit(target: Target, wanted: tuple[int, int], before: tuple[int, int]) -> None:
    for new, old in zip(wanted, before, strict=True):
        if (new == 0) != (old == 0) or 0 < new < _LEAST_BYTES_PER_S:
            text = f"'{_text(wanted)}' does not suit '{_text(before)}'"
            raise RefusedError(errno.EINVAL, text)


def _numbers(value: str) -> tuple[int, int]:
    match = _VALUE.fullmatch(value)
    if match is None:
        raise ValueError(f"{value!r} is not 'EGRESS INGRESS' in bytes per second")
    return int(match[1]), int(match[2])


def _text(ceilings: tuple[int, ...] | list[int]) -> KnobValue:
    return KnobValue(" ".join(map(str, ceilings)))
