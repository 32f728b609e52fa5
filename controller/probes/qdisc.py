# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Counters of the classes of a link's qdisc: traffic, backlog and drops."""

from collections.abc import Collection, Mapping
import contextlib
import errno
import os
import struct
from typing import NamedTuple

from controller.host.rtnetlink import RouteSocket, attributes

__all__ = ("ClassCounters", "QdiscReader")

_GET_QDISC, _GET_CLASS = 38, 42  # RTM_GETQDISC, RTM_GETTCLASS
_TC = struct.Struct("=BxxxiIII")  # struct tcmsg: family, ifindex, handle, parent, info
_STATS2 = 7  # TCA_STATS2, which holds TCA_STATS_BASIC, _QUEUE and _PKT64
_BASIC, _QUEUE, _PACKETS64 = 1, 3, 8
_BASIC_FORM = struct.Struct("=QI")  # struct gnet_stats_basic: bytes, packets
_QUEUE_FORM = struct.Struct("=IIIII")  # gnet_stats_queue: qlen, backlog, drops, requeues, ...


class ClassCounters(NamedTuple):
    """Counters since the class was created; bytes include the link's header.

    ``drops`` include those of the qdisc inside the class. ``backlog_bytes`` is a gauge.
    """

    sent_bytes: int
    sent_packets: int
    drops: int
    backlog_bytes: int


class QdiscReader:
    """Reads classes in one network namespace.

    :param netns: a file of the namespace such as ``/proc/PID/ns/net``; ``None``: the namespace of
        this thread.
    :raises OSError: the namespace does not exist or may not be entered.
    """

    def __init__(self, netns: str | None = None) -> None:
        with contextlib.ExitStack() as stack:
            fd = None
            if netns is not None:
                fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, fd)
            self._socket = RouteSocket(fd)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def poll(self, wanted: Mapping[int, Collection[int]]) -> dict[tuple[int, int], ClassCounters]:
        """Return the counters by (ifindex, classid), without classes that do not exist.

        :param wanted: class ids (``0x10004`` is ``1:4``) by ifindex.
        :raises OSError: the kernel could not answer, or not in the known form.
        """
        try:
            return self._poll(wanted)
        except (KeyError, struct.error):
            raise OSError(errno.EIO, "a class or qdisc without counters") from None

    def _poll(self, wanted: Mapping[int, Collection[int]]) -> dict[tuple[int, int], ClassCounters]:
        found: dict[tuple[int, int], ClassCounters] = {}
        has_leaf = False
        for ifindex, classids in wanted.items():
            for answer in self._socket.dump(_GET_CLASS, _TC.pack(0, ifindex, 0, 0, 0)):
                _, _, classid, _, leaf = _TC.unpack_from(answer)
                if classid in classids:
                    found[ifindex, classid] = _counters(answer)
                    # The kernel's default leaf has no handle, and drops only what the class counts.
                    has_leaf |= leaf != 0
        # A qdisc such as fq_codel drops packets that its class had already accepted. A dump,
        # because the answer to a request for one qdisc goes to all listeners for changes too.
        for answer in self._socket.dump(_GET_QDISC, _TC.pack(0, 0, 0, 0, 0)) if has_leaf else ():
            _, ifindex, _, parent, _ = _TC.unpack_from(answer)
            counters = found.get((ifindex, parent))
            if counters is not None:
                drops = max(counters.drops, _counters(answer).drops)
                found[ifindex, parent] = counters._replace(drops=drops)
        return found


def _counters(answer: bytes) -> ClassCounters:
    stats = attributes(attributes(answer, _TC.size).get(_STATS2, b""), 0)
    sent_bytes, sent_packets = _BASIC_FORM.unpack_from(stats[_BASIC])
    if _PACKETS64 in stats:
        (sent_packets,) = struct.unpack("=Q", stats[_PACKETS64])
    _, backlog, drops, _, _ = _QUEUE_FORM.unpack_from(stats[_QUEUE])
    return ClassCounters(sent_bytes, sent_packets, drops, backlog)
