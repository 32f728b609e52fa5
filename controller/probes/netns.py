# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""IP bytes and packets of workloads without a cgroup2 directory, from their network namespaces.

The packets of such a workload cannot be identified by cgroup. If its processes have a network
namespace of their own, all traffic across the border of that namespace is the workload's. The
counters are those of the interfaces, less 14 bytes of Ethernet header per packet, so that they
agree with those of cgroup_skb; they include ARP and similar traffic. Loopback traffic inside the
namespace is not included.
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
from controller.host.facts import CgroupLayout
from controller.host.odd_rows import report_odd
from controller.host.rtnetlink import RouteSocket, attributes
from controller.probes.net import Traffic
from controller.workloads.changes import diff_workloads

__all__ = ("NetnsMeter", "ip_traffic")

_log = logging.getLogger(__name__)

_COUNT_EVERY_NS = NS_PER_SEC
_CHECK_EVERY_NS = 5 * NS_PER_SEC
# One descriptor each.
_MAX_NAMESPACES = 200
# Bounds the work of one tick: reading the counters of a namespace takes 33 us, checking which
# namespace a workload has takes 85 us.
_MAX_COUNTS_PER_TICK = 40
_MAX_CHECKS_PER_TICK = 4
# Cgroups below a workload in which a process is searched.
_MAX_CGROUPS = 32

_CHUNK_BYTES = 4096

_GET_LINK = 18  # RTM_GETLINK
_IFINFO = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
_LINK, _MASTER, _LINKINFO, _STATS64, _LINK_NETNSID = 5, 10, 18, 23, 37  # IFLA_...
_KIND = 1  # IFLA_INFO_KIND
_STATS = struct.Struct("=QQQQ")  # struct rtnl_link_stats64: packets in, out, bytes in, out
_ETHER, _LOOPBACK = 1, 772  # ARPHRD_ETHER, ARPHRD_LOOPBACK
_ETHER_HEADER_BYTES = 14
_ZERO = Traffic(0, 0, 0, 0)
_TEAMS = frozenset({"bond", "team"})
# Kinds of links whose packets also pass another device of the namespace, or never leave it.
_VIRTUAL = _TEAMS | frozenset(
    {"bridge", "dummy", "geneve", "gre", "gretap", "ifb", "ip6tnl", "ipip", "sit", "tun", "vlan"}
    | {"vrf", "vxlan", "wireguard"}
)


@dataclass(slots=True)
class _Member:
    netns: int
    socket: RouteSocket
    last: Traffic
    due_ns: int
    traffic: Traffic = _ZERO


class NetnsMeter:
    """The traffic of workloads by their namespaces, about a second old.

    ``changed`` are the workloads whose counters the last ``poll`` found changed, or which it no
    longer returned.

    :param layout: the cgroup hierarchy that lists the processes of a workload.
    :param proc: the mount of procfs.
    """

    def __init__(self, layout: CgroupLayout, proc: Path = Path("/proc")) -> None:
        self._mount = layout.mount
        self._proc = proc
        self._host = {_inode(proc / "1/ns/net"), _inode(proc / "self/ns/net")}
        self._workloads: tuple[Workload, ...] = ()
        self._paths: dict[CgroupId, str] = {}
        self._members: dict[CgroupId, _Member] = {}
        # Time of the next check of the namespace, in ascending order.
        self._checks: dict[CgroupId, int] = {}
        self._rows: dict[CgroupId, Traffic] = {}
        self.changed: Collection[CgroupId] = ()

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Measure *workloads* from the next ``poll`` on, and no others."""
        before, self._workloads = self._workloads, tuple(workloads)
        change = diff_workloads(before, self._workloads).by_fields("cgroup", "path")
        added = {w.cgroup: w.path for w in change.added}
        for cgroup in (w.cgroup for w in change.removed if w.cgroup not in added):
            del self._paths[cgroup], self._checks[cgroup]
            if cgroup in self._members:
                self._drop(cgroup)
        self._paths |= added
        if added:
            self._checks = dict.fromkeys(added, 0) | self._checks

    def poll(self, now_ns: int, measured: Collection[CgroupId]) -> Mapping[CgroupId, Traffic]:
        """Return the counters since each namespace was found.

        The traffic of a namespace that several workloads share is charged to the first one found.

        :param measured: workloads that another probe measures; they are left out here.
        """
        checks = itertools.takewhile(lambda check: check[1] <= now_ns, self._checks.items())
        for cgroup, _ in list(itertools.islice(checks, _MAX_CHECKS_PER_TICK)):
            del self._checks[cgroup]
            self._checks[cgroup] = now_ns + _CHECK_EVERY_NS  # at the end of the queue
            self._check_namespace(cgroup, now_ns, measured)
        due = (m for m in self._members.values() if m.due_ns <= now_ns)
        for member in list(itertools.islice(due, _MAX_COUNTS_PER_TICK)):
            member.due_ns = now_ns + _COUNT_EVERY_NS
            with contextlib.suppress(OSError):  # tried again when due
                _advance(member)
        before, self._rows = self._rows, {c: m.traffic for c, m in self._members.items()}
        now = self._rows
        self.changed = [c for c in now.keys() | before.keys() if now.get(c) != before.get(c)]
        return now

    def close(self) -> None:
        """Close the sockets in all namespaces."""
        for cgroup in list(self._members):
            self._drop(cgroup)

    def _check_namespace(
        self, cgroup: CgroupId, now_ns: int, measured: Collection[CgroupId]
    ) -> None:
        """Make *cgroup* a member if and only if it has a namespace of its own."""
        found = None if cgroup in measured else self._open(self._paths[cgroup])
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
            _log.debug("%s: its network namespace: %s", self._paths[cgroup], error)
        finally:
            os.close(found)

    def _drop(self, cgroup: CgroupId) -> None:
        self._members.pop(cgroup).socket.close()

    def _open(self, path: str) -> int | None:
        """Return a descriptor of the namespace of a process of the cgroup *path*, if any."""
        for procs, pid in self._processes(path):
            try:
                fd = os.open(f"{self._proc}/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # the process ended
                continue
            # The process id may have been reused, so membership is checked again.
            if pid in _pids(procs):
                return fd
            os.close(fd)
        return None

    def _processes(self, path: str) -> Iterator[tuple[str, int]]:
        """Yield one process of each cgroup from *path* downwards, of up to 32 cgroups."""
        left = [f"{self._mount}{path}"]
        for _ in range(_MAX_CGROUPS):
            if not left:
                return
            directory = left.pop()
            procs = f"{directory}/cgroup.procs"
            for pid in _pids(procs)[:1]:
                yield procs, pid
            left.extend(_children(directory))


def ip_traffic(links: Iterable[bytes]) -> Traffic:
    """Return the IP bytes and packets that crossed the border of a namespace.

    :param links: the answers to a dump of its links, without their netlink headers.
    :raises struct.error: an answer is shorter than its form.
    """
    parts = [(*_IFINFO.unpack_from(link)[1:3], attributes(link, _IFINFO.size)) for link in links]
    kinds = {index: _kind(found) for _, index, found in parts}
    total = [0, 0, 0, 0]
    for form, index, found in parts:
        master = int.from_bytes(found.get(_MASTER, b""), "little")
        stacked = _LINK in found and _LINK_NETNSID not in found and kinds[index] != "veth"
        if form == _LOOPBACK or kinds[index] in _VIRTUAL or stacked or _STATS64 not in found:
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
        return _Member(netns, opened, _count(opened), now_ns + _COUNT_EVERY_NS)
    except OSError:
        opened.close()
        raise


def _advance(member: _Member) -> None:
    counted = _count(member.socket)
    grown = [new - old for new, old in zip(counted, member.last, strict=True)]
    member.last = counted
    # The sum falls when an interface is removed with its counters; that growth is unknown.
    if min(grown) >= 0:
        member.traffic = Traffic._make(a + b for a, b in zip(member.traffic, grown, strict=True))


def _count(opened: RouteSocket) -> Traffic:
    links = list(opened.dump(_GET_LINK, _IFINFO.pack(0, 0, 0, 0, 0)))
    if not links:  # even an empty namespace has its loopback
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    try:
        return ip_traffic(links)
    except struct.error as error:
        report_odd("links of a network namespace", error)
        raise OSError(errno.EIO, os.strerror(errno.EIO)) from None


def _kind(found: Mapping[int, bytes]) -> str:
    kind = attributes(found.get(_LINKINFO, b""), 0).get(_KIND, b"")
    return kind.rstrip(b"\0").decode("ascii", "replace")


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _children(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [each.path for each in entries if each.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _pids(procs: str) -> list[int]:
    try:
        fd = os.open(procs, os.O_RDONLY | os.O_CLOEXEC)
        try:
            chunks = []
            while chunk := os.read(fd, _CHUNK_BYTES):
                chunks.append(chunk)
        finally:
            os.close(fd)
    except OSError:
        return []
    return [int(pid) for pid in b"".join(chunks).split() if pid.isdigit()]
