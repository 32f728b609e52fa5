# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""IP bytes and packets of workloads whose cgroup says nothing, from their network namespace.

Where a workload has no cgroup2 directory its packets cannot be told apart by cgroup. If its
processes live in a network namespace of their own, what crosses the border of that namespace
is theirs. The counters are those of interfaces, less 14 bytes of Ethernet header per packet, so
that they agree with what cgroup_skb counts; ARP and the like are in them as well. Loopback
traffic inside the namespace is not.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
import contextlib
from dataclasses import dataclass
import errno
import itertools
import logging
import os
from pathlib import Path
import struct

from controller.core.model import CgroupId, Workload
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import diff_workloads
from controller.host.facts import CgroupLayout
from controller.host.rtnetlink import RouteSocket, attributes
from controller.probes.net import Traffic

__all__ = ("NetnsMeter", "ip_traffic")

_log = logging.getLogger(__name__)

_EVERY_NS = NS_PER_SEC
_LOOK_NS = 5 * NS_PER_SEC
# A descriptor each. What is done in one tick is bounded: a count takes 33 us, a look 85 us.
_MAX_NAMESPACES = 200
_MAX_COUNTS_PER_TICK = 40
_MAX_LOOKS_PER_TICK = 4
_MAX_CGROUPS = 32

_GET_LINK = 18  # RTM_GETLINK
_IFINFO = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
_LINK, _MASTER, _LINKINFO, _STATS64, _LINK_NETNSID = 5, 10, 18, 23, 37  # IFLA_...
_KIND = 1  # IFLA_INFO_KIND
_STATS = struct.Struct("=QQQQ")  # struct rtnl_link_stats64: packets in, out, bytes in, out
_ETHER, _LOOPBACK = 1, 772  # ARPHRD_ETHER, ARPHRD_LOOPBACK
_ETHER_HEADER_BYTES = 14
_NOTHING = Traffic(0, 0, 0, 0)
_TEAMS = frozenset({"bond", "team"})
# What these carry passes through another device of the namespace, too, or never leaves it.
_ON_TOP = _TEAMS | frozenset(
    {"bridge", "dummy", "geneve", "gre", "gretap", "ifb", "ip6tnl", "ipip", "sit", "tun", "vlan"}
    | {"vrf", "vxlan", "wireguard"}
)


@dataclass(slots=True)
class _Member:
    netns: int
    socket: RouteSocket
    last: Traffic
    due_ns: int
    traffic: Traffic = _NOTHING


class NetnsMeter:
    """Follows the traffic of workloads by their namespaces; at most a second old.

    ``changed``: of whom the last ``read`` told something else than the one before.

    :param layout: where the processes of a workload are listed.
    :param proc: where the kernel shows processes.
    """

    def __init__(self, layout: CgroupLayout, proc: Path = Path("/proc")) -> None:
        self._mount = layout.mount
        self._proc = proc
        self._host = {_inode(proc / "1/ns/net"), _inode(proc / "self/ns/net")}
        self._followed: tuple[Workload, ...] = ()
        self._wanted: dict[CgroupId, str] = {}
        self._members: dict[CgroupId, _Member] = {}
        # When each is looked at next, in that order.
        self._looks: dict[CgroupId, int] = {}
        self._told: dict[CgroupId, Traffic] = {}
        self.changed: Collection[CgroupId] = ()

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Measure some of *workloads* from the next ``read`` on, and nobody else."""
        before, self._followed = self._followed, tuple(workloads)
        change = diff_workloads(before, self._followed).by_fields("cgroup", "path")
        came = {w.cgroup: w.path for w in change.added}
        for cgroup in (w.cgroup for w in change.removed if w.cgroup not in came):
            del self._wanted[cgroup], self._looks[cgroup]
            if cgroup in self._members:
                self._drop(cgroup)
        self._wanted |= came
        if came:
            self._looks = dict.fromkeys(came, 0) | self._looks

    def poll(self, now_ns: int, measured: Collection[CgroupId]) -> Mapping[CgroupId, Traffic]:
        """Return what was counted since each was found, of those that are not *measured*.

        A namespace that several workloads share is charged to the first that was found.
        """
        looks = itertools.takewhile(lambda look: look[1] <= now_ns, self._looks.items())
        for cgroup, _ in list(itertools.islice(looks, _MAX_LOOKS_PER_TICK)):
            del self._looks[cgroup]
            self._looks[cgroup] = now_ns + _LOOK_NS  # at the end of the queue
            self._poll_cgroup(cgroup, now_ns, measured)
        due = (m for m in self._members.values() if m.due_ns <= now_ns)
        for member in list(itertools.islice(due, _MAX_COUNTS_PER_TICK)):
            member.due_ns = now_ns + _EVERY_NS
            with contextlib.suppress(OSError):  # not now: later
                _advance(member)
        told, self._told = self._told, {c: m.traffic for c, m in self._members.items()}
        now = self._told
        self.changed = [c for c in now.keys() | told.keys() if now.get(c) != told.get(c)]
        return now

    def close(self) -> None:
        """Leave all namespaces."""
        for cgroup in list(self._members):
            self._drop(cgroup)

    def _poll_cgroup(self, cgroup: CgroupId, now_ns: int, measured: Collection[CgroupId]) -> None:
        """Make *cgroup* a member if it has a namespace of its own, and else not."""
        found = None if cgroup in measured else self._open(self._wanted[cgroup])
        netns = 0 if found is None else os.fstat(found).st_ino
        known = self._members.get(cgroup)
        if known is not None and known.netns != netns:
            self._drop(cgroup)
            known = None
        if found is None:
            return
        taken = self._host | {member.netns for member in self._members.values()}
        try:
            if known is None and netns not in taken and len(self._members) < _MAX_NAMESPACES:
                self._members[cgroup] = _enter(found, netns, now_ns)
        except OSError as error:
            _log.debug("%s: its network namespace: %s", self._wanted[cgroup], error)
        finally:
            os.close(found)

    def _drop(self, cgroup: CgroupId) -> None:
        self._members.pop(cgroup).socket.close()

    def _open(self, path: str) -> int | None:
        """Return an fd of the namespace of a process of the cgroup *path*, if there is one."""
        for procs, pid in self._processes(path):
            try:
                fd = os.open(self._proc / str(pid) / "ns/net", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # it ended
                continue
            # The number may have been given to another process meanwhile.
            if pid in _pids(procs):
                return fd
            os.close(fd)
        return None

    def _processes(self, path: str) -> Iterator[tuple[Path, int]]:
        """Yield a process of each cgroup from *path* downwards, of few cgroups."""
        tree = os.walk(self._mount / path[1:])
        for directory, _, _ in itertools.islice(tree, _MAX_CGROUPS):
            procs = Path(directory) / "cgroup.procs"
            for pid in _pids(procs)[:1]:
                yield procs, pid


def ip_traffic(links: Iterable[bytes]) -> Traffic:
    """Return what crossed the border of a namespace in IP bytes and packets.

    :param links: the answers to a dump of its links, after their headers.
    """
    parts = [(*_IFINFO.unpack_from(link)[1:3], attributes(link, _IFINFO.size)) for link in links]
    kinds = {index: _kind(found) for _, index, found in parts}
    total = [0, 0, 0, 0]
    for form, index, found in parts:
        master = int.from_bytes(found.get(_MASTER, b""), "little")
        stacked = _LINK in found and _LINK_NETNSID not in found and kinds[index] != "veth"
        if form == _LOOPBACK or kinds[index] in _ON_TOP or stacked or _STATS64 not in found:
            continue
        if master and kinds.get(master) not in _TEAMS:
            continue
        rx_packets, tx_packets, rx_bytes, tx_bytes = _STATS.unpack_from(found[_STATS64])
        header = _ETHER_HEADER_BYTES if form == _ETHER else 0
        counted = (
            *(tx_bytes - header * tx_packets, rx_bytes - header * rx_packets),
            *(tx_packets, rx_packets),
        )
        total = [t + c for t, c in zip(total, counted, strict=True)]
    return Traffic._make(total)


def _enter(fd: int, netns: int, now_ns: int) -> _Member:
    opened = RouteSocket(fd)
    try:
        return _Member(netns, opened, _count(opened), now_ns + _EVERY_NS)
    except OSError:
        opened.close()
        raise


def _advance(member: _Member) -> None:
    counted = _count(member.socket)
    grown = [new - old for new, old in zip(counted, member.last, strict=True)]
    member.last = counted
    # An interface that went takes its counters with it.
    if min(grown) >= 0:
        member.traffic = Traffic._make(a + b for a, b in zip(member.traffic, grown, strict=True))


def _count(opened: RouteSocket) -> Traffic:
    links = list(opened.dump(_GET_LINK, _IFINFO.pack(0, 0, 0, 0, 0)))
    if not links:  # even an empty namespace has its loopback
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return ip_traffic(links)


def _kind(found: Mapping[int, bytes]) -> str:
    kind = attributes(found.get(_LINKINFO, b""), 0).get(_KIND, b"")
    return kind.rstrip(b"\0").decode("ascii", "replace")


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _pids(procs: Path) -> list[int]:
    try:
        return list(map(int, procs.read_text(encoding="ascii").split()))
    except OSError:
        return []
