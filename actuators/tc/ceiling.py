# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Actuator of tc.ceiling: the highest bandwidth of best-effort work on a link, per direction.

The value is ``EGRESS INGRESS`` in bytes per second, 0 for a direction without shaping. The ceiling
of the HTB class is changed in place, so queued packets stay. If the link has an HTB of another
program and the configuration names a class of it, the ceiling of that class is changed instead of
ours; the path of the target is then ``DEVICE/MAJOR:MINOR``.
"""

import errno
import re

from actuators.base import GoneError, Phase, RefusedError, Trace, gone, no_trace, refused
from actuators.tc.netlink import Netlink
from actuators.tc.shape import MAJOR, TIER_CEILING
from actuators.tc.tree import ifb_name
from controller.core.decision import Action, Outcome
from controller.core.model import Knob, KnobValue, Target, TargetKind

__all__ = ("TcCeiling", "class_id")

_VALUE = re.compile(r"([0-9]{1,13}) ([0-9]{1,13})")
_CLASS = re.compile(r"[^/]+/([0-9a-f]{1,4}):([0-9a-f]{1,4})")
# Below this rate the arithmetic of HTB is meaningless, and no packet would ever be sent.
_LEAST_BYTES_PER_S = 1000


class TcCeiling:
    """The actuator of ``Knob.TC_CEILING``; implements ``base.Actuator``."""

    knob = Knob.TC_CEILING
    checks_ancestors = False

    def applies_to(self, target: Target) -> bool:
        """Pure: return whether *target* is a link."""
        return target.kind is TargetKind.LINK

    def unsupported_reason(self) -> str | None:
        """Return ``None``: the knob exists wherever the class exists."""
        return None

    def read(self, target: Target) -> KnobValue:
        """Return the ceilings; errors as ``base.Actuator.read``.

        A link without the class counts as gone.
        """
        with Netlink() as netlink:
            netlink.check(target)
            return _text(_read(netlink, target))

    def apply(self, action: Action, trace: Trace = no_trace) -> Outcome:
        """Change the directions that differ, egress first."""
        wanted = _numbers(action.value)
        refusal: RefusedError | None = None
        with Netlink() as netlink:
            try:
                netlink.check(action.target)
                try:
                    _write(netlink, action.target, wanted, trace)
                except RefusedError as error:
                    refusal = error
                applied = _text(_read(netlink, action.target))
            except GoneError as error:
                return gone(action, error)
        if refusal is None:
            return Outcome(action=action, applied=applied)
        return refused(action, applied, refusal.errno, f"{action.target.path}: {refusal}")

    def intermediate_values(self, previous: KnobValue, value: KnobValue) -> tuple[KnobValue, ...]:
        """Pure: return both values and the one between them, because egress changes first."""
        between = (_numbers(value)[0], _numbers(previous)[1])
        return (previous, _text(between), value)

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: return whether the values are equal; the kernel does not round rates."""
        return expected == found

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: at any time; links are independent of each other."""
        return Phase.ANY


def _read(netlink: Netlink, target: Target) -> tuple[int, int]:
    number = class_id(target)
    egress, ingress = (
        0 if ifindex is None else _ceil(netlink, ifindex, number)
        for ifindex in _devices(netlink, target)
    )
    if not egress and not ingress:
        raise GoneError(f"{target.path} has no class {number >> 16:x}:{number & 0xFFFF:x}")
    return egress, ingress


def _ceil(netlink: Netlink, ifindex: int, number: int) -> int:
    found = netlink.classes(ifindex).get(number)
    return 0 if found is None else found.ceil


def _write(netlink: Netlink, target: Target, wanted: tuple[int, int], trace: Trace) -> None:
    before = _read(netlink, target)
    for new, old in zip(wanted, before, strict=True):
        if (new == 0) != (old == 0) or 0 < new < _LEAST_BYTES_PER_S:
            text = f"cannot change '{_text(before)}' to '{_text(wanted)}'"
            raise RefusedError(errno.EINVAL, text)
    for ifindex, new, old in zip(_devices(netlink, target), wanted, before, strict=True):
        if ifindex is not None and new != old:
            trace(f"before write ceiling {new}")
            netlink.change_ceiling(ifindex, class_id(target), new)
            trace(f"after write ceiling {new}")


def _devices(netlink: Netlink, target: Target) -> tuple[int, int | None]:
    # Returns the devices that have the class: the link for egress, our ifb for ingress.
    if _CLASS.fullmatch(target.path):
        return target.id, None
    ifb = netlink.find(ifb_name(target.id))
    return target.id, None if ifb is None else ifb.ifindex


def class_id(target: Target) -> int:
    """Return the 32-bit id of the class that has the ceiling."""
    adopted = _CLASS.fullmatch(target.path)
    if adopted is None:
        return MAJOR << 16 | TIER_CEILING
    return int(adopted[1], 16) << 16 | int(adopted[2], 16)


def _numbers(value: str) -> tuple[int, int]:
    match = _VALUE.fullmatch(value)
    if match is None:
        raise ValueError(f"{value!r} is not 'EGRESS INGRESS' in bytes per second")
    return int(match[1]), int(match[2])


def _text(ceilings: tuple[int, int]) -> KnobValue:
    return KnobValue(" ".join(map(str, ceilings)))
