# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Network namespaces: which one we are in, and how to get into another.

The kernel's traffic control, through pyroute2: the few objects that shaping is made of.

All calls act in the network namespace of the calling process. *Gone* is a device that left
(ENODEV); any other answer that is not a yes is *refused*, with the kernel's own words.
"""

from collections.abc import Iterator
import contextlib
import errno
from pathlib import Path
import struct
from types import TracebackType
from typing import Any, NamedTuple, Self

from actuators.base import GoneError, RefusedError
from actuators.tc.shape import MAJOR, HtbClass
from controller.core.model import Target
from controller.host.rtnetlink import RouteSocket, attribute, attributes

__all__ = (
    "EGRESS",
    "HANDLE",
    "INGRESS",
    "Filter",
    "Link",
    "Netlink",
    "Qdisc",
    "namespace_path",
    "network_namespace",
)


def network_namespace() -> str:
    """Return the identity of this thread's network namespace: its inode number."""
    return str(Path("/proc/thread-self/ns/net").stat().st_ino)


def namespace_path(namespace: str) -> str | None:
    """Return a file by which a network namespace can be entered; ``None``: it is gone."""
    named = Path("/run/netns").glob("*")
    for path in (*named, *Path("/proc").glob("[0-9]*/ns/net")):
        with contextlib.suppress(OSError):
            if str(path.stat().st_ino) == namespace:
                return str(path)
    return None


# include/uapi/linux/pkt_sched.h: the two hooks of clsact, and the root of a device.
INGRESS = 0xFFFFFFF2
EGRESS = 0xFFFFFFF3
_ROOT = 0xFFFFFFFF
_CLSACT = 0xFFFF0000
# Handle of our filters; that of HTB is the same number as its major.
HANDLE = MAJOR
_QUEUE_PACKETS = 1000
_U32_MAX = 0xFFFFFFFF
_IFF_UP = 1
_GET_QDISC, _NEW_CLASS, _GET_CLASS = 38, 40, 42  # RTM_GETQDISC, RTM_NEWTCLASS, RTM_GETTCLASS
_TC = struct.Struct("=BxxxiIII")  # struct tcmsg: family, ifindex, handle, parent, info
_TCA_KIND, _TCA_OPTIONS = 1, 2
_HTB_PARMS, _HTB_RATE64, _HTB_CEIL64 = 1, 6, 7
# struct tc_htb_opt: two struct tc_ratespec of 12 bytes, whose last word is the rate.
_CEIL, _CEIL_AT = struct.Struct("=I"), 20


class Link(NamedTuple):
    """A device of this network namespace; ``peer`` is the ifindex of a veth's other end.

    ``peer_netnsid`` is this namespace's number for the one where that is. ``queue_packets`` is
    the length that queues at the device get.
    """

    ifindex: int
    name: str
    kind: str
    peer: int | None
    peer_netnsid: int | None
    queue_packets: int
    up: bool


class Qdisc(NamedTuple):
    """A queueing discipline; a handle of 0 is the kernel's own choice."""

    kind: str
    handle: int
    parent: int


class Filter(NamedTuple):
    """A filter of whatever kind."""

    kind: str
    prio: int
    handle: int


class Netlink:
    """One netlink socket; use as a context manager, in one thread. Opening takes 1 ms."""

    def __enter__(self) -> Self:
        # pyroute2 costs 22 MiB and 0.2 s: only those who have a link to shape pay for it.
        from pyroute2 import IPRoute

        self._socket: Any = IPRoute()
        self._raw = RouteSocket()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._raw.close()
        self._socket.close()

    def check(self, target: Target) -> Link:
        """Return the link of *target*.

        :raises GoneError: it left, or its network namespace did.
        :raises RefusedError: it is in another network namespace.
        """
        if target.scope != network_namespace():
            way = namespace_path(target.scope)
            if way is None:
                raise GoneError(f"{target.path}: its network namespace is gone")
            raise RefusedError(
                errno.EXDEV,
                f"{target.path} is in another network namespace: run this there, "
                f"with 'nsenter --net={way}'",
            )
        return self.link(target.id)

    def link(self, ifindex: int) -> Link:
        """Return a link; GoneError if there is none of that number."""
        with self._asking(f"link {ifindex}") as rtnetlink:
            return _link(rtnetlink.link("get", index=ifindex)[0])

    def find(self, name: str) -> Link | None:
        """Return the link of that name."""
        try:
            with self._asking(f"link {name}") as rtnetlink:
                return _link(rtnetlink.link("get", ifname=name)[0])
        except GoneError:
            return None

    def netnsid(self, netns: int) -> int | None:
        """Return this namespace's number for the one that *netns* is a descriptor of."""
        with self._asking("network namespace") as rtnetlink:
            number: int = rtnetlink.get_netnsid(fd=netns)["nsid"]
            return number if number >= 0 else None

    def qdiscs(self, ifindex: int) -> list[Qdisc]:
        """Return all qdiscs of a link."""
        # The kernel answers with those of all links, of which there may be a thousand.
        found = []
        for answer in self._raw.dump(_GET_QDISC, _TC.pack(0, ifindex, 0, 0, 0)):
            _, link, handle, parent, _ = _TC.unpack_from(answer)
            if link == ifindex:
                kind = attributes(answer, _TC.size)[_TCA_KIND].rstrip(b"\0").decode()
                found.append(Qdisc(kind, handle, parent))
        return found

    def classes(self, ifindex: int) -> dict[int, HtbClass]:
        """Return the HTB classes of a link by class id; bursts are not read back (0)."""
        found = {}
        with self._asking("classes") as rtnetlink:
            for message in rtnetlink.get_classes(index=ifindex):
                if message.get_attr("TCA_KIND") == "htb":
                    found[message["handle"]] = _htb_class(message)
        return found

    def filters(self, ifindex: int, parent: int) -> list[Filter]:
        """Return the filters at a hook or qdisc; none where there is no such place."""
        found = set()
        with self._asking("filters") as rtnetlink:
            for m in rtnetlink.get_filters(index=ifindex, parent=parent):
                found.add(Filter(m.get_attr("TCA_KIND"), m["info"] >> 16, m["handle"]))
        return sorted(f for f in found if f.handle)

    def add_ifb(self, name: str) -> int:
        """Make an ifb that is up and return its number."""
        with self._asking(f"making {name}") as rtnetlink:
            # Its queue is what HTB's leaves take for their own length; the default is 32.
            rtnetlink.link("add", ifname=name, kind="ifb", txqlen=_QUEUE_PACKETS)
            made = _link(rtnetlink.link("get", ifname=name)[0])
            rtnetlink.link("set", index=made.ifindex, state="up")
            return made.ifindex

    def delete_link(self, ifindex: int) -> None:
        """Remove a device."""
        with self._asking(f"removing link {ifindex}") as rtnetlink:
            rtnetlink.link("del", index=ifindex)

    def add_htb(self, ifindex: int, default: int) -> None:
        """Make an HTB of ours the root of a device; *default* is the class of the unmatched."""
        with self._asking("adding htb") as rtnetlink:
            rtnetlink.tc("add", "htb", ifindex, MAJOR << 16, default=default)

    def delete_htb(self, ifindex: int) -> None:
        """Remove our HTB with all in it; the kernel puts its default in place."""
        with self._asking("removing htb") as rtnetlink:
            rtnetlink.tc("del", "htb", ifindex, MAJOR << 16, root=True)

    def add_class(self, ifindex: int, new: HtbClass) -> None:
        """Add a class to our HTB."""
        values = new._asdict()
        parent, minor = values.pop("parent"), values.pop("minor")
        with self._asking(f"class {MAJOR:x}:{minor:x}") as rtnetlink:
            rtnetlink.tc(
                "add-class",
                "htb",
                ifindex,
                MAJOR << 16 | minor,
                parent=MAJOR << 16 | parent,
                **values,
            )

    def change_ceiling(self, ifindex: int, class_id: int, ceil: int) -> None:
        """Change the ceiling of an HTB class, bytes per second, and nothing else of it.

        The burst at the ceiling stays the same in time. Also right for somebody else's class:
        what the kernel told is sent back as it was.

        :raises GoneError: there is no such class.
        """
        name = f"class {class_id >> 16:x}:{class_id & 0xFFFF:x}"
        for answer in self._raw.dump(_GET_CLASS, _TC.pack(0, ifindex, 0, 0, 0)):
            _, _, handle, parent, _ = _TC.unpack_from(answer)
            if handle == class_id:
                body = _TC.pack(0, ifindex, handle, parent, 0) + _with_ceiling(answer, ceil)
                break
        else:
            raise GoneError(f"no {name} on link {ifindex}")
        try:
            self._raw.change(_NEW_CLASS, body)
        except OSError as error:
            raise _failure(error.errno or errno.EIO, f"{name}: {error.strerror}") from None

    def add_clsact(self, ifindex: int) -> None:
        """Give a device the hooks of clsact."""
        with self._asking("adding clsact") as rtnetlink:
            rtnetlink.tc("add", "clsact", ifindex)

    def delete_clsact(self, ifindex: int) -> None:
        """Remove the hooks of clsact and whatever filters are there."""
        with self._asking("removing clsact") as rtnetlink:
            rtnetlink.tc("del", "clsact", ifindex)

    def add_filter(
        self, ifindex: int, parent: int, program: int, name: str, redirect_to: int | None = None
    ) -> None:
        """Add a filter of ours: a program, and where its matches are redirected to."""
        action = {
            "kind": "mirred",
            "direction": "egress",
            "action": "redirect",
            "ifindex": redirect_to,
        }
        extra = {} if redirect_to is None else {"action": action}
        with self._asking(f"filter {name}") as rtnetlink:
            rtnetlink.tc(
                "add-filter",
                "bpf",
                ifindex,
                HANDLE,
                parent=parent,
                prio=1,
                fd=program,
                name=f"sweetpoint_{name}",
                **extra,
            )

    def delete_filter(self, ifindex: int, parent: int) -> None:
        """Remove the filter of ours at a hook."""
        with self._asking("removing a filter") as rtnetlink:
            rtnetlink.tc("del-filter", "bpf", ifindex, HANDLE, parent=parent, prio=1)

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[Any]:
        from pyroute2.netlink.exceptions import NetlinkError

        try:
            yield self._socket
        except NetlinkError as error:
            words = f"{what}: {error.args[1] if len(error.args) > 1 else error}"
            raise _failure(int(error.code), words) from None


def _link(message: Any) -> Link:
    info = message.get_attr("IFLA_LINKINFO")
    return Link(
        message["index"],
        message.get_attr("IFLA_IFNAME"),
        (info.get_attr("IFLA_INFO_KIND") if info else None) or "",
        message.get_attr("IFLA_LINK"),
        message.get_attr("IFLA_LINK_NETNSID"),
        message.get_attr("IFLA_TXQLEN") or 0,
        bool(message["flags"] & _IFF_UP),
    )


def _htb_class(message: Any) -> HtbClass:
    options = message.get_attr("TCA_OPTIONS")
    parms = options.get_attr("TCA_HTB_PARMS")
    parent = 0 if message["parent"] == _ROOT else message["parent"] & 0xFFFF
    return HtbClass(
        minor=message["handle"] & 0xFFFF,
        parent=parent,
        rate=options.get_attr("TCA_HTB_RATE64") or parms["rate"],
        ceil=options.get_attr("TCA_HTB_CEIL64") or parms["ceil"],
        prio=parms["prio"],
        burst=0,
        cburst=0,
        quantum=parms["quantum"],
    )


def _with_ceiling(answer: bytes, ceil: int) -> bytes:
    """Return the attributes of a class as the kernel told them, with another ceiling."""
    options = attributes(attributes(answer, _TC.size)[_TCA_OPTIONS], 0)
    parms = bytearray(options[_HTB_PARMS])
    # Rates beyond 32 bits are in attributes of their own, the old field is full then.
    _CEIL.pack_into(parms, _CEIL_AT, min(ceil, _U32_MAX))
    parts = attribute(_HTB_PARMS, bytes(parms))
    if _HTB_RATE64 in options:
        parts += attribute(_HTB_RATE64, options[_HTB_RATE64])
    if ceil > _U32_MAX:
        parts += attribute(_HTB_CEIL64, struct.pack("=Q", ceil))
    return attribute(_TCA_KIND, b"htb\0") + attribute(_TCA_OPTIONS, parts)


def _failure(code: int, words: str) -> GoneError | RefusedError:
    return GoneError(words) if code == errno.ENODEV else RefusedError(code, words)
