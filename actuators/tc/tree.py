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

from actuators.base import GoneError, Phase, RefusedError, Trace, gone, no_trace, refused
from actuators.tc.hooks import (
    HOOKS,
    drop_clsact,
    ensure_clsact,
    has_any_filter,
    has_clsact,
    has_filter,
    has_tcx_ingress,
)
from actuators.tc.netlink import INGRESS, Link, Netlink, network_namespace
from actuators.tc.shape import (
    ABSENT,
    ABSENT_CLSACT,
    CLASS_OF_TIER,
    MAJOR,
    Shape,
    Tree,
    changed_limits,
    decode,
    encode,
    htb_classes,
    is_absent,
    shape_of,
)
from controller.core.decision import Action, Outcome
from controller.core.model import Knob, KnobValue, QosClass, Target, TargetKind

__all__ = ("Programs", "TcTree", "ifb_name", "refuse_foreign")

_ROOT = 0xFFFFFFFF
_HTB = MAJOR << 16


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

    :param programs: needed to make a tree, not to remove one.
    """

    knob = Knob.TC_TREE
    checks_ancestors = False

    def __init__(self, programs: Programs | None = None) -> None:
        self._programs = programs

    def applies_to(self, target: Target) -> bool:
        """Pure: whether a target has this knob."""
        return target.kind is TargetKind.LINK

    def unsupported_reason(self) -> str | None:
        """Return ``None``: only trying tells, and that is done when a tree is made."""
        return None

    def read(self, target: Target) -> KnobValue:
        """Return what is there of a tree; errors as ``base.Actuator.read``."""
        with Netlink() as netlink:
            return _read(netlink, target)

    def apply(self, action: Action, trace: Trace = no_trace) -> Outcome:
        """Make a tree where there is none, replace or remove one, or move limits in it."""
        with Netlink() as netlink:
            try:
                refusal = self._try(netlink, action, trace)
                applied = _read(netlink, action.target)
            except GoneError as error:
                return gone(action, error)
        if refusal is None:
            return Outcome(action=action, applied=applied)
        return refused(action, applied, refusal.errno, f"{action.target.path}: {refusal}")

    def intermediate_values(self, previous: KnobValue, value: KnobValue) -> tuple[KnobValue, ...]:
        """Pure: both ends; of what is between them, ``same`` recognises all that is ours."""
        return (previous, ABSENT_CLSACT, value)

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: equal, or both something of ours."""
        return expected == found or not (is_absent(expected) or is_absent(found))

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: made before what is in it, removed after."""
        return Phase.DELETE if is_absent(value) else Phase.CREATE

    def _try(self, netlink: Netlink, action: Action, trace: Trace) -> RefusedError | None:
        try:
            self._write(netlink, action, trace)
        except RefusedError as error:
            return error
        except GoneError as error:
            # The link, or only a device of ours: reading tells.
            return RefusedError(errno.ENODEV, str(error))
        return None

    def _write(self, netlink: Netlink, action: Action, trace: Trace) -> None:
        ifindex = action.target.id
        if _change_limits(netlink, action, trace):
            return
        if not is_absent(action.previous):
            _remove(netlink, ifindex, trace)
        if action.value == ABSENT:
            drop_clsact(netlink, ifindex, trace)
        elif not is_absent(action.value):
            self._make(netlink, action.target, decode(action.value), trace)

    def _make(self, netlink: Netlink, target: Target, tree: Tree, trace: Trace) -> None:
        programs = self._programs
        if programs is None:
            raise RefusedError(errno.ENOSYS, "the classifying programs are off")
        refuse_foreign(netlink, target.id, tree)
        if tree.ingress is not None:
            trace("before write ifb")
            ifb = netlink.add_ifb(ifb_name(target.id))
            trace("after write ifb")
            _make_htb(netlink, ifb, tree.ingress, programs.ingress, "ingress", trace)
            ensure_clsact(netlink, target.id, trace)
            trace("before write redirect")
            netlink.add_filter(target.id, INGRESS, programs.redirect, "redirect", redirect_to=ifb)
            trace("after write redirect")
        if tree.egress is not None:
            _make_htb(netlink, target.id, tree.egress, programs.egress, "egress", trace)


def _change_limits(netlink: Netlink, action: Action, trace: Trace) -> bool:
    """Change ceilings in place, so that no packet is lost; whether nothing else is to be done."""
    try:
        moved = changed_limits(decode(action.previous), decode(action.value))
    except ValueError:  # one of them is not a whole tree
        return False
    if moved is None:
        return False
    ifb = netlink.find(ifb_name(action.target.id))
    for ifindex, limits in zip((action.target.id, ifb and ifb.ifindex), moved, strict=True):
        for number, ceil in limits.items():
            if ifindex is None:
                raise GoneError(f"{action.target.path}: the ifb left")
            trace(f"before write limit {number:x}")
            netlink.change_ceiling(ifindex, _HTB | number, ceil)
            trace(f"after write limit {number:x}")
    return True


def _read(netlink: Netlink, target: Target) -> KnobValue:
    ifindex = target.id
    ifb = netlink.find(ifb_name(ifindex)) if target.scope == network_namespace() else None
    try:
        netlink.check(target)
    except GoneError:
        if ifb is not None:
            return KnobValue("partial (the link left)")
        raise
    egress = _read_shape(netlink, ifindex)
    ingress = None if ifb is None else _read_ifb(netlink, ifb)
    hooked = has_clsact(netlink, ifindex)
    redirect = hooked and has_filter(netlink, ifindex, INGRESS)
    if isinstance(egress, str) or isinstance(ingress, str) or (ingress is not None) != redirect:
        words = (("egress", egress), ("ingress", ingress))
        wrong = [f"{name}: {found}" for name, found in words if isinstance(found, str)]
        return KnobValue(f"partial ({'; '.join(wrong) or f'redirect: {redirect}'})")
    if egress is None and ingress is None:
        return ABSENT_CLSACT if hooked and not has_any_filter(netlink, ifindex) else ABSENT
    return encode(Tree(egress, ingress))


def _read_shape(netlink: Netlink, ifindex: int) -> Shape | str | None:
    # The shape, what is wrong with it, or None where there is no HTB of ours.
    if not _has_our_htb(netlink, ifindex):
        return None
    shape = shape_of(netlink.classes(ifindex).values())
    if shape is None:
        return "no classes"
    return shape if has_filter(netlink, ifindex, _HTB) else "no filter"


def _read_ifb(netlink: Netlink, ifb: Link) -> Shape | str:
    # What is redirected to a device that is down is dropped.
    return (_read_shape(netlink, ifb.ifindex) or "no htb") if ifb.up else "ifb down"


def _has_our_htb(netlink: Netlink, ifindex: int) -> bool:
    return any(
        q.kind == "htb" and q.handle == _HTB and q.parent == _ROOT for q in netlink.qdiscs(ifindex)
    )


def _make_htb(
    netlink: Netlink, ifindex: int, shape: Shape, program: int, name: str, trace: Trace
) -> None:
    trace(f"before write htb {name}")
    netlink.add_htb(ifindex, default=CLASS_OF_TIER[QosClass.SYSTEM])
    trace(f"after write htb {name}")
    for one in htb_classes(shape):
        netlink.add_class(ifindex, one)
        trace(f"after write class {one.minor:x} {name}")
    netlink.add_filter(ifindex, _HTB, program, name)
    trace(f"after write filter {name}")


def _remove(netlink: Netlink, ifindex: int, trace: Trace) -> None:
    # The other way round than it was made; what is not there is passed over.
    if _has_our_htb(netlink, ifindex):
        trace("before write no htb")
        netlink.delete_htb(ifindex)
        trace("after write no htb")
    if has_filter(netlink, ifindex, INGRESS):
        trace("before write no redirect")
        netlink.delete_filter(ifindex, INGRESS)
        trace("after write no redirect")
    ifb = netlink.find(ifb_name(ifindex))
    if ifb is not None and ifb.kind == "ifb":
        trace("before write no ifb")
        netlink.delete_link(ifb.ifindex)
        trace("after write no ifb")


def refuse_foreign(netlink: Netlink, ifindex: int, tree: Tree) -> None:
    """Raise RefusedError where somebody else's work is in the way of *tree*, saying what to do."""
    if tree.egress is not None:
        for qdisc in netlink.qdiscs(ifindex):
            # A handle of 0 is the kernel's own default, which comes back by itself.
            if qdisc.kind not in HOOKS and qdisc.handle:
                raise RefusedError(
                    errno.EBUSY,
                    f"the qdisc {qdisc.kind} {qdisc.handle >> 16:x}: is somebody else's and is "
                    "left alone: remove it, or name its class with existing_qdisc: adopt",
                )
    if tree.ingress is not None and (
        has_any_filter(netlink, ifindex, INGRESS) or has_tcx_ingress(ifindex)
    ):
        raise RefusedError(
            errno.EBUSY,
            "somebody else filters what comes in, and redirected packets would pass those filters "
            "by: set ingress: off",
        )
