# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Actuator of tc.tree: the HTB at the root of a shaped link, and one at an ifb for ingress.

A filter at the link's clsact redirects incoming packets to the ifb, where they are shaped as
outgoing ones. The ifb is created before the redirect and removed after it, because a redirect to a
missing device drops packets.

Objects of ours are identified by their handle or device name. A tree is therefore found and
removed in every state, complete or partial, and independently of the process that created it. The
text of a value describes the objects found, and any of them makes the value ours.
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
    """Descriptors of the classifying BPF programs; see ``bpf/classify.bpf.c``."""

    egress: int
    ingress: int
    redirect: int
    mark: int
    learn: int


def ifb_name(ifindex: int) -> str:
    """Return the name of the ifb for the ingress of a link."""
    return f"swp{ifindex}"


class TcTree:
    """The actuator of ``Knob.TC_TREE``; implements ``base.Actuator``.

    :param programs: needed to create a tree, not to remove one.
    """

    knob = Knob.TC_TREE
    checks_ancestors = False

    def __init__(self, programs: Programs | None = None) -> None:
        self._programs = programs

    def applies_to(self, target: Target) -> bool:
        """Pure: return whether *target* is a link."""
        return target.kind is TargetKind.LINK

    def unsupported_reason(self) -> str | None:
        """Return ``None``: support is known only after an attempt to create a tree."""
        return None

    def read(self, target: Target) -> KnobValue:
        """Return the tree, or the parts of it that exist; errors as ``base.Actuator.read``."""
        with Netlink() as netlink:
            return _read(netlink, target)

    def apply(self, action: Action, trace: Trace = no_trace) -> Outcome:
        """Create, replace or remove a tree, or change limits in it."""
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
        """Pure: return both values and an empty clsact; ``matches`` accepts any partial tree."""
        return (previous, ABSENT_CLSACT, value)

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: return whether the values are equal, or both include objects of ours."""
        return expected == found or not (is_absent(expected) or is_absent(found))

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: created before the knobs in it are written, removed after them."""
        return Phase.DELETE if is_absent(value) else Phase.CREATE

    def _try(self, netlink: Netlink, action: Action, trace: Trace) -> RefusedError | None:
        try:
            self._write(netlink, action, trace)
        except RefusedError as error:
            return error
        except GoneError as error:
            # Either the link or only a device of ours is gone; the caller's read tells which.
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
            self._create(netlink, action.target, decode(action.value), trace)

    def _create(self, netlink: Netlink, target: Target, tree: Tree, trace: Trace) -> None:
        programs = self._programs
        if programs is None:
            raise RefusedError(errno.ENOSYS, "the classifying programs are off")
        refuse_foreign(netlink, target.id, tree)
        if tree.ingress is not None:
            trace("before write ifb")
            ifb = netlink.add_ifb(ifb_name(target.id))
            trace("after write ifb")
            _create_htb(netlink, ifb, tree.ingress, programs.ingress, "ingress", trace)
            ensure_clsact(netlink, target.id, trace)
            trace("before write redirect")
            netlink.add_filter(target.id, INGRESS, programs.redirect, "redirect", redirect_to=ifb)
            trace("after write redirect")
        if tree.egress is not None:
            _create_htb(netlink, target.id, tree.egress, programs.egress, "egress", trace)


def _change_limits(netlink: Netlink, action: Action, trace: Trace) -> bool:
    """Change limits in place, without loss of packets; return whether that was sufficient."""
    try:
        changed = changed_limits(decode(action.previous), decode(action.value))
    except ValueError:  # one of the values is not a complete tree
        return False
    if changed is None:
        return False
    ifb = netlink.find(ifb_name(action.target.id))
    for ifindex, limits in zip((action.target.id, ifb and ifb.ifindex), changed, strict=True):
        for number, ceil in limits.items():
            if ifindex is None:
                raise GoneError(f"{action.target.path}: the ifb is gone")
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
    # Returns the shape, or a text that says what is incomplete, or None without an HTB of ours.
    if not _has_our_htb(netlink, ifindex):
        return None
    shape = shape_of(netlink.classes(ifindex).values())
    if shape is None:
        return "no classes"
    return shape if has_filter(netlink, ifindex, _HTB) else "no filter"


def _read_ifb(netlink: Netlink, ifb: Link) -> Shape | str:
    # Packets that are redirected to a device that is down are dropped.
    return (_read_shape(netlink, ifb.ifindex) or "no htb") if ifb.up else "ifb down"


def _has_our_htb(netlink: Netlink, ifindex: int) -> bool:
    return any(
        q.kind == "htb" and q.handle == _HTB and q.parent == _ROOT for q in netlink.qdiscs(ifindex)
    )


def _create_htb(
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
    # In the reverse order of creation; missing objects are skipped.
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
    """Check that *tree* does not conflict with qdiscs and filters of other programs.

    :raises RefusedError: it does; the message says what to do.
    """
    if tree.egress is not None:
        for qdisc in netlink.qdiscs(ifindex):
            # A handle of 0 is the default qdisc of the kernel, which the kernel restores itself.
            if qdisc.kind not in HOOKS and qdisc.handle:
                raise RefusedError(
                    errno.EBUSY,
                    f"the qdisc {qdisc.kind} {qdisc.handle >> 16:x}: belongs to another program "
                    "and is not changed: remove it, or name its class with existing_qdisc: adopt",
                )
    if tree.ingress is not None and (
        has_any_filter(netlink, ifindex, INGRESS) or has_tcx_ingress(ifindex)
    ):
        raise RefusedError(
            errno.EBUSY,
            "another program filters incoming packets, and redirected packets would bypass its "
            "filters: set ingress: off",
        )
