# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The tree that shapes a link: an HTB at its root, and one at an ifb for what comes in.

What comes in is redirected to the ifb by a filter at the link's clsact and shaped as the ifb's
output. The ifb is made before the redirect and removed after it: a redirect to a device that is
not there drops packets.

All objects are recognised by what they are (our handle, our device name), so that a tree is
found and removed whatever state it is in and whoever made it. Its text therefore tells what is
there, and anything that is ours counts as ours.
"""

import errno
from typing import NamedTuple

from actuators.base import GoneError, RefusedError, Trace, Turn, no_trace
from actuators.tc.hooks import (
    HOOKS,
    drop_clsact,
    ensure_clsact,
    has_any_filter,
    has_clsact,
    has_filter,
)
from actuators.tc.netlink import INGRESS, Netlink
from actuators.tc.shape import (
    ABSENT,
    ABSENT_CLSACT,
    CLASS_OF_TIER,
    MAJOR,
    Shape,
    Tree,
    decode,
    encode,
    htb_classes,
    is_absent,
    shape_of,
)
from controller.model import Action, Failure, Knob, KnobValue, Outcome, QosClass, Target, TargetKind

__all__ = ("Programs", "TcTree", "ifb_name")

_ROOT = 0xFFFFFFFF
_PARTIAL = "partial"


class Programs(NamedTuple):
    """Descriptors of the classifying programs; see ``bpf/classify.bpf.c``."""

    egress: int
    ingress: int
    redirect: int
    mark: int
    learn: int


def ifb_name(ifindex: int) -> str:
    """Return the name of the ifb that shapes what comes in at a link."""
    return f"swp{ifindex}"


class TcTree:
    """``Knob.TC_TREE``; implements ``base.Actuator``.

    :param netlink: shared with the other actuators of links.
    :param programs: needed to make a tree, not to remove one.
    """

    knob = Knob.TC_TREE
    kind = TargetKind.LINK
    checks_ancestors = False

    def __init__(self, netlink: Netlink, programs: Programs | None = None) -> None:
        self._netlink = netlink
        self._programs = programs

    def supported(self) -> str | None:
        """Return ``None``: only trying tells, and that is done when a tree is made."""
        return None

    def read(self, target: Target) -> KnobValue:
        """Return what is there of a tree; errors as ``base.Actuator.read``."""
        self._netlink.check(target)
        egress = self._read_shape(target.id)
        ifb = self._netlink.find(ifb_name(target.id))
        ingress = None if ifb is None else self._read_shape(ifb.ifindex)
        hooked = has_clsact(self._netlink, target.id)
        redirect = hooked and has_filter(self._netlink, target.id, INGRESS)
        broken = isinstance(egress, str) or isinstance(ingress, str)
        if broken or (ingress is None) == redirect or (ifb is not None and ingress is None):
            return KnobValue(f"{_PARTIAL} egress={egress} ifb={ingress} redirect={redirect}")
        if egress is None and ingress is None:
            empty = hooked and not has_any_filter(self._netlink, target.id)
            return ABSENT_CLSACT if empty else ABSENT
        assert not isinstance(egress, str) and not isinstance(ingress, str)
        return encode(Tree(egress, ingress))

    def apply(self, action: Action, trace: Trace = no_trace) -> Outcome:
        """Make a tree where there is none, replace one, or remove it."""
        target = action.target
        try:
            if not is_absent(action.previous):
                self._remove(target, trace)
            if is_absent(action.value):
                if action.value == ABSENT:
                    drop_clsact(self._netlink, target.id, trace)
            else:
                self._make(target, decode(action.value), trace)
        except GoneError as error:
            return self._gone(action, error)
        except RefusedError as error:
            return self._refused(action, error)
        return Outcome(action=action, applied=self.read(target))

    def passes_through(self, previous: KnobValue, value: KnobValue) -> tuple[KnobValue, ...]:
        """Pure: both ends; what is between them is recognised by ``same``."""
        return (previous, value, ABSENT_CLSACT)

    def same(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: equal, or both something of ours."""
        return expected == found or not (is_absent(expected) or is_absent(found))

    def turn(self, previous: KnobValue, value: KnobValue) -> Turn:
        """Pure: no order among links."""
        return Turn.FREE

    def _make(self, target: Target, tree: Tree, trace: Trace) -> None:
        if self._programs is None:
            raise RefusedError(errno.ENOSYS, f"{target.path}: the classifying programs are off")
        self._refuse_foreign(target, tree)
        if tree.ingress is not None:
            trace("before write ifb")
            ifb = self._netlink.add_ifb(ifb_name(target.id))
            trace("after write ifb")
            self._make_htb(ifb, tree.ingress, self._programs.ingress, "ingress", trace)
            ensure_clsact(self._netlink, target.id, trace)
            trace("before write redirect")
            self._netlink.add_filter(
                target.id, INGRESS, self._programs.redirect, "redirect", redirect_to=ifb
            )
            trace("after write redirect")
        if tree.egress is not None:
            self._make_htb(target.id, tree.egress, self._programs.egress, "egress", trace)

    def _make_htb(self, ifindex: int, shape: Shape, program: int, name: str, trace: Trace) -> None:
        trace(f"before write htb {name}")
        self._netlink.add_htb(ifindex, default=CLASS_OF_TIER[QosClass.SYSTEM])
        trace(f"after write htb {name}")
        for one in htb_classes(shape):
            self._netlink.add_class(ifindex, one)
            trace(f"after write class {one.minor:x} {name}")
        self._netlink.add_filter(ifindex, MAJOR << 16, program, name)
        trace(f"after write filter {name}")

    def _remove(self, target: Target, trace: Trace) -> None:
        # The other way round than it was made; whatever is not there is passed over.
        if self._has_our_htb(target.id):
            trace("before write no htb egress")
            self._netlink.delete_htb(target.id)
            trace("after write no htb egress")
        if has_filter(self._netlink, target.id, INGRESS):
            trace("before write no redirect")
            self._netlink.delete_filter(target.id, INGRESS)
            trace("after write no redirect")
        ifb = self._netlink.find(ifb_name(target.id))
        if ifb is not None and ifb.kind == "ifb":
            trace("before write no ifb")
            self._netlink.delete_link(ifb.ifindex)
            trace("after write no ifb")

    def _refuse_foreign(self, target: Target, tree: Tree) -> None:
        name = target.path
        if tree.egress is not None:
            for qdisc in self._netlink.qdiscs(target.id):
                # A handle of 0 is the kernel's own default, which comes back by itself.
                if qdisc.kind not in HOOKS and qdisc.handle:
                    raise RefusedError(
                        errno.EBUSY,
                        f"{name} has the qdisc {qdisc.kind} {qdisc.handle >> 16:x}: of somebody "
                        "else: it is left alone; remove it, or set existing_qdisc: adopt",
                    )
        if tree.ingress is not None and has_any_filter(self._netlink, target.id, INGRESS):
            raise RefusedError(
                errno.EBUSY,
                f"{name} has filters of somebody else for what comes in, and redirected packets "
                "would pass them by: shape egress only",
            )

    def _read_shape(self, ifindex: int) -> Shape | str | None:
        # The shape, what is wrong with it, or None where there is no HTB of ours.
        if not self._has_our_htb(ifindex):
            return None
        shape = shape_of(self._netlink.classes(ifindex).values())
        if shape is None:
            return "classes missing"
        filtered = has_filter(self._netlink, ifindex, MAJOR << 16)
        return shape if filtered else "filter missing"

    def _has_our_htb(self, ifindex: int) -> bool:
        return any(
            q.kind == "htb" and q.handle == MAJOR << 16 and q.parent == _ROOT
            for q in self._netlink.qdiscs(ifindex)
        )

    def _gone(self, action: Action, error: GoneError) -> Outcome:
        # ENODEV may also mean another device than the link: then something of ours is left.
        try:
            self._netlink.check(action.target)
        except GoneError:
            return Outcome(action=action, applied=None, failure=Failure.GONE, message=str(error))
        return self._refused(action, RefusedError(errno.ENODEV, str(error)))

    def _refused(self, action: Action, error: RefusedError) -> Outcome:
        return Outcome(
            action=action,
            applied=self.read(action.target),
            failure=Failure.REFUSED,
            errno=error.errno,
            message=f"{action.target.path}: {error}",
        )
