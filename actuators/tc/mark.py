# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The two filters at the host's end of a pod's veth, which tell the pod's packets apart.

Behind the veth the socket of a packet is forgotten, and behind masquerade its address. The
filter for what the pod sends leaves a mark; the one for what the pod gets learns flows that the
pod never answers. Both pass every packet on to the next filter.
"""

import errno

from actuators.base import GoneError, RefusedError, Trace, Turn, no_trace
from actuators.tc.hooks import drop_clsact, ensure_clsact, has_any_filter, has_clsact, has_filter
from actuators.tc.netlink import EGRESS, INGRESS, Netlink
from actuators.tc.shape import ABSENT, ABSENT_CLSACT, CLASSIFIED, is_absent
from actuators.tc.tree import Programs
from controller.model import Action, Failure, Knob, KnobValue, Outcome, Target, TargetKind

__all__ = ("TcMark",)

_PARTIAL = KnobValue("partial")


class TcMark:
    """``Knob.TC_MARK``; implements ``base.Actuator``. Values: absent, classified.

    :param netlink: shared with the other actuators of links.
    :param programs: needed to add the filters, not to remove them.
    """

    knob = Knob.TC_MARK
    kind = TargetKind.LINK
    checks_ancestors = False

    def __init__(self, netlink: Netlink, programs: Programs | None = None) -> None:
        self._netlink = netlink
        self._programs = programs

    def supported(self) -> str | None:
        """Return ``None``: only trying tells."""
        return None

    def read(self, target: Target) -> KnobValue:
        """Return which of our filters are there; errors as ``base.Actuator.read``."""
        self._netlink.check(target)
        if not has_clsact(self._netlink, target.id):
            return ABSENT
        found = [has_filter(self._netlink, target.id, hook) for hook in (INGRESS, EGRESS)]
        if any(found):
            return CLASSIFIED if all(found) else _PARTIAL
        return ABSENT if has_any_filter(self._netlink, target.id) else ABSENT_CLSACT

    def apply(self, action: Action, trace: Trace = no_trace) -> Outcome:
        """Add the filters or remove them."""
        target = action.target
        try:
            if not is_absent(action.previous):
                self._remove(target, trace)
            if action.value == CLASSIFIED:
                self._add(target, trace)
            elif action.value == ABSENT:
                drop_clsact(self._netlink, target.id, trace)
            elif action.value != ABSENT_CLSACT:
                raise ValueError(f"{action.value!r} is not a value of {self.knob}")
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
        """Pure: both ends, and what may be between them."""
        return (previous, ABSENT_CLSACT, _PARTIAL, value)

    def same(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: equal, or both something of ours."""
        return expected == found or not (is_absent(expected) or is_absent(found))

    def turn(self, previous: KnobValue, value: KnobValue) -> Turn:
        """Pure: no order among links."""
        return Turn.FREE

    def _add(self, target: Target, trace: Trace) -> None:
        if self._programs is None:
            raise RefusedError(errno.ENOSYS, "the classifying programs are off")
        ensure_clsact(self._netlink, target.id, trace)
        hooks = ((INGRESS, "mark", self._programs.mark), (EGRESS, "learn", self._programs.learn))
        for hook, name, program in hooks:
            trace(f"before write {name}")
            self._netlink.add_filter(target.id, hook, program, name)
            trace(f"after write {name}")

    def _remove(self, target: Target, trace: Trace) -> None:
        for hook, name in ((EGRESS, "learn"), (INGRESS, "mark")):
            if has_filter(self._netlink, target.id, hook):
                trace(f"before write no {name}")
                self._netlink.delete_filter(target.id, hook)
                trace(f"after write no {name}")
