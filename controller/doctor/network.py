# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which links of this host can be shaped; whether the kernel can is tried like a probe."""

import contextlib
import struct
from typing import NamedTuple

from controller.doctor.fact import Fact
from controller.rtnetlink import RouteSocket, attributes

__all__ = ("find_links",)

_GET_LINK, _GET_QDISC = 18, 38  # RTM_GETLINK, RTM_GETQDISC
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
_TC = struct.Struct("=BxxxiIII")  # struct tcmsg: family, ifindex, handle, parent, info
_KIND, _NAME, _LINK_NETNSID = 1, 3, 37  # TCA_KIND, IFLA_IFNAME, IFLA_LINK_NETNSID
_UP, _LOOPBACK = 0x1, 0x8
_HOOKS = ("clsact", "ingress")
_SHOWN = 8


class _Qdisc(NamedTuple):
    kind: str
    handle: int


def find_links() -> Fact:
    """Tell of the links that are up whether they can be shaped; the pods' veths come last."""
    try:
        with contextlib.closing(RouteSocket()) as rtnetlink:
            names = _names(rtnetlink)
            qdiscs = _qdiscs(rtnetlink)
    except OSError as error:
        return _fact(None, str(error))
    told = [(name, *_judge(qdiscs.get(ifindex, []))) for ifindex, name in names.items()]
    shown = [f"{name}: {words}" for name, _, words in told[:_SHOWN]]
    more = [f"and {len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
    detail = ", ".join([*shown, *more]) or "no link but loopback is up"
    return _fact(any(can for _, can, _ in told), detail)


def _judge(qdiscs: list[_Qdisc]) -> tuple[bool, str]:
    foreign = [q for q in qdiscs if q.handle and q.kind not in _HOOKS]
    if foreign:
        return False, f"{foreign[0].kind} {foreign[0].handle >> 16:x}: is somebody else's"
    multiqueue = [q.kind for q in qdiscs if q.kind in ("mq", "mqprio")]
    if multiqueue:
        return True, f"{multiqueue[0]}, only with multiqueue: force"
    return True, "can be shaped"


def _names(rtnetlink: RouteSocket) -> dict[int, str]:
    found = []
    for answer in rtnetlink.dump(_GET_LINK, _LINK.pack(0, 0, 0, 0, 0)):
        _, _, ifindex, flags, _ = _LINK.unpack_from(answer)
        told = attributes(answer, _LINK.size)
        if flags & _UP and not flags & _LOOPBACK:
            name = told[_NAME].rstrip(b"\0").decode(errors="replace")
            found.append((_LINK_NETNSID in told, ifindex, name))
    return {ifindex: name for _, ifindex, name in sorted(found)}


def _qdiscs(rtnetlink: RouteSocket) -> dict[int, list[_Qdisc]]:
    found: dict[int, list[_Qdisc]] = {}
    for answer in rtnetlink.dump(_GET_QDISC, _TC.pack(0, 0, 0, 0, 0)):
        _, ifindex, handle, _, _ = _TC.unpack_from(answer)
        kind = attributes(answer, _TC.size)[_KIND].rstrip(b"\0").decode(errors="replace")
        found.setdefault(ifindex, []).append(_Qdisc(kind, handle))
    return found


def _fact(have: bool | None, detail: str) -> Fact:
    return Fact(
        name="links",
        have=have,
        detail=detail,
        needed_for="bandwidth of best-effort work (section network: of the configuration)",
        how="a link with the kernel's own qdisc; somebody else's can be adopted class by class",
    )
