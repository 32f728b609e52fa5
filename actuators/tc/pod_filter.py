# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Actuator of tc.mark: two filters at the host's end of a pod's veth, to identify its packets.

A packet loses its socket at the veth, and its source address at masquerade. The filter for packets
from the pod sets a mark in them. The filter for packets to the pod records flows, also those that
the pod never answers. Both pass every packet on to the next filter.
"""

import errno

from actuators.base import GoneError, Phase, RefusedError, Trace, gone, no_trace, refused
from actuators.tc.hooks import drop_clsact, ensure_clsact, has_any_filter, has_clsact, has_filter
from actuators.tc.netlink import EGRESS, INGRESS, Netlink
from actuators.tc.shape import ABSENT, ABSENT_CLSACT, CLASSIFIED, is_absent
from actuators.tc.tree import Programs
from controller.core.decision import Action, Outcome
from controller.core.model import Knob, KnobValue, Target, TargetKind

__all__ = ("TcPodFilter",)

_PARTIAL = KnobValue("partial")


class TcPodFilter:
    """The actuator of ``Knob.TC_MARK``; implements ``base.Actuator``.

    Values: ``absent``, ``classified``; as read back also ``absent clsact`` (see ``shape``) and
    ``partial`` (one of the two filters).

    :param programs: needed to add the filters, not to remove them.
    """

    knob = Knob.TC_MARK
    checks_ancestors = False

    def __init__(self, programs: Programs | None = None) -> None:
        self._programs = programs

    def applies_to(self, target: Target) -> bool:
        """Pure: return whether *target* is the host's end of a veth."""
        return target.kind is TargetKind.VETH

    def unsupported_reason(self) -> str | None:
        """Return ``None``: support is known only after an attempt to add the filters."""
        return None

    def read(self, target: Target) -> KnobValue:
        """Return which of our filters exist; errors as ``base.Actuator.read``."""
        with Netlink() as netlink:
            netlink.check(target)
            return _read(netlink, target.id)

    def apply(self, action: Action, trace: Trace = no_trace) -> Outcome:
        """Add the filters or remove them."""
        with Netlink() as netlink:
            try:
                netlink.check(action.target)
                self._write(netlink, action, trace)
                return Outcome(action=action, applied=_read(netlink, action.target.id))
            except GoneError as error:
                return gone(action, error)
            except RefusedError as error:
                try:
                    applied = _read(netlink, action.target.id)
                except GoneError as late:  # removed meanwhile, with its pod
                    return gone(action, late)
                return refused(action, applied, error.errno, f"{action.target.path}: {error}")

    def intermediate_values(self, previous: KnobValue, value: KnobValue) -> tuple[KnobValue, ...]:
        """Pure: return both values, and those that may occur between them."""
        return (previous, ABSENT_CLSACT, _PARTIAL, value)

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: return whether the values are equal, or both include filters of ours."""
        return expected == found or not (is_absent(expected) or is_absent(found))

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: added before other knobs are written, removed after them."""
        return Phase.DELETE if is_absent(value) else Phase.CREATE

    def _write(self, netlink: Netlink, action: Action, trace: Trace) -> None:
        ifindex, value = action.target.id, action.value
        if value != CLASSIFIED and not is_absent(value):
            raise ValueError(f"{value!r} is not a value of {self.knob}")
        if not is_absent(action.previous):
            _remove(netlink, ifindex, trace)
        if value == ABSENT:
            drop_clsact(netlink, ifindex, trace)
        elif value == CLASSIFIED:
            self._add(netlink, ifindex, trace)

    def _add(self, netlink: Netlink, ifindex: int, trace: Trace) -> None:
        if self._programs is None:
            raise RefusedError(errno.ENOSYS, "the classifying programs are off")
        ensure_clsact(netlink, ifindex, trace)
        hooks = ((INGRESS, "mark", self._programs.mark), (EGRESS, "learn", self._programs.learn))
        for hook, name, program in hooks:
            trace(f"before write {name}")
            netlink.add_filter(ifindex, hook, program, name)
            trace(f"after write {name}")


def _read(netlink: Netlink, ifindex: int) -> KnobValue:
    if not has_clsact(netlink, ifindex):
        return ABSENT
    found = [has_filter(netlink, ifindex, hook) for hook in (INGRESS, EGRESS)]
    if any(found):
        return CLASSIFIED if all(found) else _PARTIAL
    return ABSENT if has_any_filter(netlink, ifindex) else ABSENT_CLSACT


def _remove(netlink: Netlink, ifindex: int, trace: Trace) -> None:
    for hook, name in ((EGRESS, "learn"), (INGRESS, "mark")):
        if has_filter(netlink, ifindex, hook):
            trace(f"before write no {name}")
            netlink.delete_filter(ifindex, hook)
            trace(f"after write no {name}")
