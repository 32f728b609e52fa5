# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Links, qdiscs, classes and filters through rtnetlink, mostly by pyroute2.

``Netlink`` has the operations on traffic control that shaping needs. Its calls act in the network
namespace of the calling process; the two functions about namespaces identify that one, and find
another one for messages. An answer of ENODEV raises GoneError, any other error RefusedError with
the kernel's text, also if the kernel does not answer in time.
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
    """Return the inode number of this thread's network namespace, as its identity."""
    return str(Path("/proc/thread-self/ns/net").stat().st_ino)


def namespace_path(namespace: str) -> str | None:
    """Return a file for entering a network namespace; ``None`` if there is none."""
    named = Path("/run/netns").glob("*")
    for path in (*named, *Path("/proc").glob("[0-9]*/ns/net")):
        with contextlib.suppress(OSError):
            if str(path.stat().st_ino) == namespace:
                return str(path)
    return None


# include/uapi/linux/pkt_sched.h: the hooks of clsact, and the root of a device.
INGRESS = 0xFFFFFFF2
EGRESS = 0xFFFFFFF3
_ROOT = 0xFFFFFFFF
_CLSACT = 0xFFFF0000
# Handle of our filters. The HTB of ours has the same number as its major number.
HANDLE = MAJOR
_QUEUE_PACKETS = 1000
_U32_MAX = 0xFFFFFFFF
_IFF_UP = 1
_GET_QDISC, _NEW_CLASS, _GET_CLASS = 38, 40, 42  # RTM_GETQDISC, RTM_NEWTCLASS, RTM_GETTCLASS
_TC = struct.Struct("=BxxxiIII")  # struct tcmsg: family, ifindex, handle, parent, info
_TCA_KIND, _TCA_OPTIONS = 1, 2
_HTB_PARMS, _HTB_RATE64, _HTB_CEIL64 = 1, 6, 7
# struct tc_htb_opt begins with two struct tc_ratespec (rate, ceil) of 12 bytes each; the last
# word of these is the rate in bytes per second.
_CEIL, _CEIL_AT = struct.Struct("=I"), 20


class Link(NamedTuple):
    """A device of this network namespace.

    ``peer`` is the ifindex of the other end of a veth, and ``peer_netnsid`` the number that this
    namespace has for the namespace of that end. ``queue_packets`` is the default length of queues
    at the device.
    """

    ifindex: int
    name: str
    kind: str
    peer: int | None
    peer_netnsid: int | None
    queue_packets: int
    up: bool


class Qdisc(NamedTuple):
    """A queueing discipline; a handle of 0 is that of a default qdisc of the kernel."""

    kind: str
    handle: int
    parent: int


class Filter(NamedTuple):
    """A filter of any kind."""

    kind: str
    prio: int
    handle: int


class Netlink:
    """One netlink socket; use as a context manager, in one thread. Opening takes 1 ms."""

    def __enter__(self) -> Self:
        # pyroute2 takes 22 MiB and 0.2 s: it is loaded only on hosts with a link to shape.
        from pyroute2 import IPRoute

        try:
            self._raw = RouteSocket()
        except OSError as error:
            raise _failure(error, "netlink") from None
        try:
            self._socket: Any = IPRoute()
        except OSError as error:
            self._raw.close()
            raise _failure(error, "netlink") from None
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

        :raises GoneError: the link or its network namespace no longer exists.
        :raises RefusedError: the link is in another network namespace.
        """
        if target.scope != network_namespace():
            path = namespace_path(target.scope)
            if path is None:
                raise GoneError(f"{target.path}: its network namespace is gone")
            raise RefusedError(
                errno.EXDEV,
                f"{target.path} is in another network namespace: run this command in it, "
                f"with 'nsenter --net={path}'",
            )
        return self.link(target.id)

    def link(self, ifindex: int) -> Link:
        """Return the link of that number.

        :raises GoneError: there is none.
        """
        with self._named_errors(f"link {ifindex}") as rtnetlink:
            return _link(rtnetlink.link("get", index=ifindex)[0])

    def find(self, name: str) -> Link | None:
        """Return the link of that name; ``None`` if there is none."""
        try:
            with self._named_errors(f"link {name}") as rtnetlink:
                return _link(rtnetlink.link("get", ifname=name)[0])
        except GoneError:
            return None

    def netnsid(self, netns: int) -> int | None:
        """Return the number that this namespace has for that of the descriptor *netns*.

        ``None`` if it has no number.
        """
        with self._named_errors("network namespace") as rtnetlink:
            number: int = rtnetlink.get_netnsid(fd=netns)["nsid"]
            return number if number >= 0 else None

    def qdiscs(self, ifindex: int) -> list[Qdisc]:
        """Return all qdiscs of a link."""
        # The kernel dumps the qdiscs of all links, of which there may be a thousand; so this
        # uses the raw socket, see controller.host.rtnetlink.
        found = []
        with self._named_errors("qdiscs"):
            for answer in self._raw.dump(_GET_QDISC, _TC.pack(0, ifindex, 0, 0, 0)):
                _, link, handle, parent, _ = _TC.unpack_from(answer)
                if link == ifindex:
                    kind = attributes(answer, _TC.size)[_TCA_KIND].rstrip(b"\0").decode()
                    found.append(Qdisc(kind, handle, parent))
        return found

    def classes(self, ifindex: int) -> dict[int, HtbClass]:
        """Return the HTB classes of a link by class id; their bursts are not read (0)."""
        found = {}
        with self._named_errors("classes") as rtnetlink:
            for message in rtnetlink.get_classes(index=ifindex):
                if message.get_attr("TCA_KIND") == "htb":
                    found[message["handle"]] = _htb_class(message)
        return found

    def filters(self, ifindex: int, parent: int) -> list[Filter]:
        """Return the filters at a hook or qdisc; none if *parent* does not exist."""
        found = set()
        with self._named_errors("filters") as rtnetlink:
            for m in rtnetlink.get_filters(index=ifindex, parent=parent):
                found.add(Filter(m.get_attr("TCA_KIND"), m["info"] >> 16, m["handle"]))
        return sorted(f for f in found if f.handle)

    def add_ifb(self, name: str) -> int:
        """Create an ifb, set it up, and return its ifindex."""
        with self._named_errors(f"creating {name}") as rtnetlink:
            # The leaves of HTB take the queue length of the device; the default of ifb is 32.
            rtnetlink.link("add", ifname=name, kind="ifb", txqlen=_QUEUE_PACKETS)
            ifb = _link(rtnetlink.link("get", ifname=name)[0])
            rtnetlink.link("set", index=ifb.ifindex, state="up")
            return ifb.ifindex

    def delete_link(self, ifindex: int) -> None:
        """Remove a device."""
        with self._named_errors(f"removing link {ifindex}") as rtnetlink:
            rtnetlink.link("del", index=ifindex)

    def add_htb(self, ifindex: int, default: int) -> None:
        """Set an HTB of ours as root qdisc; unclassified packets get the class *default*."""
        with self._named_errors("adding htb") as rtnetlink:
            rtnetlink.tc("add", "htb", ifindex, MAJOR << 16, default=default)

    def delete_htb(self, ifindex: int) -> None:
        """Remove our HTB with its classes; the kernel installs its default qdisc."""
        with self._named_errors("removing htb") as rtnetlink:
            rtnetlink.tc("del", "htb", ifindex, MAJOR << 16, root=True)

    def add_class(self, ifindex: int, new: HtbClass) -> None:
        """Add a class to our HTB."""
        values = new._asdict()
        parent, minor = values.pop("parent"), values.pop("minor")
        with self._named_errors(f"class {MAJOR:x}:{minor:x}") as rtnetlink:
            rtnetlink.tc(
                "add-class",
                "htb",
                ifindex,
                MAJOR << 16 | minor,
                parent=MAJOR << 16 | parent,
                **values,
            )

    def change_ceiling(self, ifindex: int, class_id: int, ceil: int) -> None:
        """Change the ceiling of an HTB class, in bytes per second, and no other parameter.

        The burst at the ceiling keeps its length in time. All other parameters are sent as the
        kernel reported them, so this is also correct for a class of another program.

        :raises GoneError: there is no such class.
        """
        name = f"class {class_id >> 16:x}:{class_id & 0xFFFF:x}"
        with self._named_errors(name):
            for answer in self._raw.dump(_GET_CLASS, _TC.pack(0, ifindex, 0, 0, 0)):
                _, _, handle, parent, _ = _TC.unpack_from(answer)
                if handle == class_id:
                    body = _TC.pack(0, ifindex, handle, parent, 0) + _with_ceiling(answer, ceil)
                    self._raw.change(_NEW_CLASS, body)
                    return
        raise GoneError(f"no {name} on link {ifindex}")

    def add_clsact(self, ifindex: int) -> None:
        """Add clsact to a device."""
        with self._named_errors("adding clsact") as rtnetlink:
            rtnetlink.tc("add", "clsact", ifindex)

    def delete_clsact(self, ifindex: int) -> None:
        """Remove clsact from a device, with all filters at its hooks."""
        with self._named_errors("removing clsact") as rtnetlink:
            rtnetlink.tc("del", "clsact", ifindex)

    def add_filter(
        self, ifindex: int, parent: int, program: int, name: str, redirect_to: int | None = None
    ) -> None:
        """Add a filter of ours.

        :param program: descriptor of the BPF program.
        :param redirect_to: ifindex of the device to which matching packets are redirected.
        """
        action = {
            "kind": "mirred",
            "direction": "egress",
            "action": "redirect",
            "ifindex": redirect_to,
        }
        extra = {} if redirect_to is None else {"action": action}
        with self._named_errors(f"filter {name}") as rtnetlink:
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
        with self._named_errors("removing a filter") as rtnetlink:
            rtnetlink.tc("del-filter", "bpf", ifindex, HANDLE, parent=parent, prio=1)

    @contextlib.contextmanager
    def _named_errors(self, what: str) -> Iterator[Any]:
        # Yields the socket; errors are raised as GoneError or RefusedError that name *what*.
        from pyroute2.netlink.exceptions import NetlinkError

        try:
            yield self._socket
        except NetlinkError as error:
            text = error.args[1] if len(error.args) > 1 else str(error)
            raise _failure(OSError(int(error.code), text), what) from None
        except OSError as error:
            raise _failure(error, what) from None


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
    """Return the attributes of a class as the kernel reported them, with another ceiling."""
    options = attributes(attributes(answer, _TC.size)[_TCA_OPTIONS], 0)
    parms = bytearray(options[_HTB_PARMS])
    # A rate above 32 bits is in an attribute of its own; the old field then has its maximum.
    _CEIL.pack_into(parms, _CEIL_AT, min(ceil, _U32_MAX))
    parts = attribute(_HTB_PARMS, bytes(parms))
    if _HTB_RATE64 in options:
        parts += attribute(_HTB_RATE64, options[_HTB_RATE64])
    if ceil > _U32_MAX:
        parts += attribute(_HTB_CEIL64, struct.pack("=Q", ceil))
    return attribute(_TCA_KIND, b"htb\0") + attribute(_TCA_OPTIONS, parts)


def _failure(error: OSError, what: str) -> GoneError | RefusedError:
    text = f"{what}: {error.strerror or error}"  # a time-out has no number and no strerror
    if error.errno == errno.ENODEV:
        return GoneError(text)
    return RefusedError(error.errno or errno.EIO, text)
