# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Where a pod's network comes out on this host: the host's ends of its veths.

The pod's side tells the number of the other end. It is believed only if the host's side says
the same of the pod's namespace, which is the kernel's word and not the pod's.
"""

import contextlib
import os
from pathlib import Path
import struct

from actuators.base import GoneError, RefusedError
from actuators.tc.netlink import Link, Netlink
from controller.host import CgroupLayout
from controller.model import Workload
from controller.rtnetlink import RouteSocket, attributes

__all__ = ("first_process", "host_ends")

_GET_LINK = 18  # RTM_GETLINK
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
_U32 = struct.Struct("=I")
_IFLA_LINK, _IFLA_LINK_NETNSID = 5, 37


def first_process(layout: CgroupLayout, workload: Workload) -> int | None:
    """Return a process in a workload's cgroup or below; ``None``: none is there."""
    for folder, _, _ in os.walk(f"{layout.mount}{workload.path}"):
        with contextlib.suppress(OSError):
            processes = Path(folder, "cgroup.procs").read_text(encoding="ascii").split()
            if processes:
                return int(processes[0])
    return None


def host_ends(netlink: Netlink, pid: int) -> tuple[Link, ...] | None:
    """Return the host's ends of the veths of a process's network namespace.

    ``None``: it is in the host's own namespace. Nothing: it left, or has no veth.

    :raises OSError: its namespace may not be entered.
    """
    try:
        fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return ()
    try:
        if os.fstat(fd).st_ino == Path("/proc/thread-self/ns/net").stat().st_ino:
            return None
        candidates = _peers(fd)
        number = netlink.netnsid(fd) if candidates else None
        if number is None:
            return ()
        found = []
        for inner, outer in candidates:
            with contextlib.suppress(GoneError, RefusedError):
                link = netlink.link(outer)
                if link.kind == "veth" and (link.peer, link.peer_netnsid) == (inner, number):
                    found.append(link)
        return tuple(found)
    finally:
        os.close(fd)


def _peers(netns: int) -> list[tuple[int, int]]:
    # (number in the namespace, number of the other end) of what has its other end elsewhere.
    found = []
    with contextlib.closing(RouteSocket(netns)) as inside:
        for answer in inside.dump(_GET_LINK, _LINK.pack(0, 0, 0, 0, 0)):
            told = attributes(answer, _LINK.size)
            if _IFLA_LINK in told and _IFLA_LINK_NETNSID in told:
                (outer,) = _U32.unpack(told[_IFLA_LINK])
                found.append((_LINK.unpack_from(answer)[2], outer))
    return found
