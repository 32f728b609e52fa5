# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The clsact hooks of a link, which filters of other programs may share with ours."""

import ctypes

from actuators.base import Trace
from actuators.tc.netlink import EGRESS, HANDLE, INGRESS, Netlink

__all__ = (
    "HOOKS",
    "drop_clsact",
    "ensure_clsact",
    "has_any_filter",
    "has_clsact",
    "has_filter",
    "has_tcx_ingress",
)

HOOKS = ("clsact", "ingress")
_BPF_TCX_INGRESS = 46  # include/uapi/linux/bpf.h


def has_clsact(netlink: Netlink, ifindex: int) -> bool:
    """Return whether a link has hooks for filters, of ours or of another program."""
    return any(q.kind in HOOKS for q in netlink.qdiscs(ifindex))


def has_filter(netlink: Netlink, ifindex: int, parent: int) -> bool:
    """Return whether a filter of ours is attached to *parent*, a hook or qdisc."""
    return any(f.kind == "bpf" and f.handle == HANDLE for f in netlink.filters(ifindex, parent))


def has_any_filter(netlink: Netlink, ifindex: int, *hooks: int) -> bool:
    """Return whether one of *hooks* (default: both) has a filter, of ours or not."""
    return any(netlink.filters(ifindex, hook) for hook in hooks or (INGRESS, EGRESS))


def ensure_clsact(netlink: Netlink, ifindex: int, trace: Trace) -> None:
    """Add clsact to a link that has no hooks for filters."""
    if not has_clsact(netlink, ifindex):
        trace("before write clsact")
        netlink.add_clsact(ifindex)
        trace("after write clsact")


def drop_clsact(netlink: Netlink, ifindex: int, trace: Trace) -> None:
    """Remove the hooks of a link if no filter is attached to them."""
    if has_clsact(netlink, ifindex) and not has_any_filter(netlink, ifindex):
        trace("before write no clsact")
        netlink.delete_clsact(ifindex)
        trace("after write no clsact")


def has_tcx_ingress(ifindex: int) -> bool:
    """Return whether a link has tcx programs (Linux 6.6) for incoming packets.

    Such programs are not part of a dump of filters. Kernels without tcx do not know the query and
    have none.

    :raises OSError: libbpf is missing.
    """
    count = ctypes.c_uint32(0)
    # A handle of its own: actuators may not import controller.probes, where BPF maps have theirs.
    libbpf = ctypes.CDLL("libbpf.so.1")
    failed = libbpf.bpf_prog_query(ifindex, _BPF_TCX_INGRESS, 0, None, None, ctypes.byref(count))
    return not failed and count.value > 0
