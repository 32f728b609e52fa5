# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The hooks that clsact gives a link, shared with whoever else has filters there."""

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
    """Return whether a link has hooks for filters, whoever made them."""
    return any(q.kind in HOOKS for q in netlink.qdiscs(ifindex))


def has_filter(netlink: Netlink, ifindex: int, parent: int) -> bool:
    """Return whether our filter is at that place."""
    return any(f.kind == "bpf" and f.handle == HANDLE for f in netlink.filters(ifindex, parent))


def has_any_filter(netlink: Netlink, ifindex: int, *hooks: int) -> bool:
    """Return whether anybody's filter is at one of the hooks (default: any)."""
    return any(netlink.filters(ifindex, hook) for hook in hooks or (INGRESS, EGRESS))


def ensure_clsact(netlink: Netlink, ifindex: int, trace: Trace) -> None:
    """Give a link hooks for filters if it has none."""
    if not has_clsact(netlink, ifindex):
        trace("before write clsact")
        netlink.add_clsact(ifindex)
        trace("after write clsact")


def drop_clsact(netlink: Netlink, ifindex: int, trace: Trace) -> None:
    """Take the hooks away unless somebody has filters there."""
    if has_clsact(netlink, ifindex) and not has_any_filter(netlink, ifindex):
        trace("before write no clsact")
        netlink.delete_clsact(ifindex)
        trace("after write no clsact")


def has_tcx_ingress(ifindex: int) -> bool:
    """Return whether programs are attached by tcx (Linux 6.6) to what comes in at a link.

    No dump of filters shows them.

    :raises OSError: libbpf is missing.
    """
    count = ctypes.c_uint32(0)
    libbpf = ctypes.CDLL("libbpf.so.1")
    failed = libbpf.bpf_prog_query(
        ifindex, _BPF_TCX_INGRESS, 0, None, None, ctypes.byref(count)
    )  # older kernels do not know the question
    return not failed and count.value > 0
