# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The kernel's traffic control, through pyroute2: the few objects that shaping is made of.

All calls act in the network namespace of the calling process. *Gone* is a device that left
(ENODEV); any other answer that is not a yes is *refused*, with the kernel's own words.
"""

from collections.abc import Iterator
import contextlib
import errno
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from actuators.base import GoneError, RefusedError
from actuators.tc.shape import MAJOR, HtbClass
from controller.model import Target

__all__ = (
    "EGRESS",
    "HANDLE",
    "INGRESS",
    "Filter",
    "Link",
    "Netlink",
    "Qdisc",
    "network_namespace",
)

# include/uapi/linux/pkt_sched.h: the two hooks of clsact, and the root of a device.
INGRESS = 0xFFFFFFF2
EGRESS = 0xFFFFFFF3
_ROOT = 0xFFFFFFFF
_CLSACT = 0xFFFF0000
# Handle of our filters; that of HTB is the same number as its major.
HANDLE = MAJOR
_QUEUE_PACKETS = 1000
_U32_MAX = 0xFFFFFFFF


class Link(NamedTuple):
    """A device of this network namespace; ``peer`` is the ifindex of a veth's other end.

    ``peer_netnsid`` is this namespace's number for the one where that is.
    """

    ifindex: int
    name: str
    kind: str
    peer: int | None
    peer_netnsid: int | None


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


def network_namespace() -> str:
    """Return the identity of this thread's network namespace: its inode number."""
    return str(Path("/proc/thread-self/ns/net").stat().st_ino)


class Netlink:
    """One netlink socket; use as a context manager, in one thread. Opening takes 1 ms."""

    def __enter__(self) -> Self:
        # pyroute2 costs 22 MiB and 0.2 s: only those who have a link to shape pay for it.
        from pyroute2 import IPRoute

        self._socket: Any = IPRoute()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def check(self, target: Target) -> Link:
        """Return the link of *target*.

        :raises GoneError: it left, or its network namespace did.
        :raises RefusedError: it is in another network namespace.
        """
        if target.scope != network_namespace():
            pid = _process_in(target.scope)
            if pid is None:
                raise GoneError(f"{target.path}: its network namespace is gone")
            raise RefusedError(
                errno.EXDEV,
                f"{target.path} is in another network namespace: run this there, "
                f"with 'nsenter --net -t {pid}'",
            )
        return self.link(target.id)

    def link(self, ifindex: int) -> Link:
        """Return a link; GoneError if there is none of that number."""
        with self._asking(f"link {ifindex}") as rtnetlink:
            return _link(rtnetlink.link("get", index=ifindex)[0])

    def links(self) -> list[Link]:
        """Return all links of this network namespace."""
        with self._asking("links") as rtnetlink:
            return [_link(message) for message in rtnetlink.link("dump")]

    def find(self, name: str) -> Link | None:
        """Return the link of that name."""
        return next((link for link in self.links() if link.name == name), None)

    def netnsid(self, netns: int) -> int | None:
        """Return this namespace's number for the one that *netns* is a descriptor of."""
        with self._asking("network namespace") as rtnetlink:
            number: int = rtnetlink.get_netnsid(fd=netns)["nsid"]
            return number if number >= 0 else None

    def qdiscs(self, ifindex: int) -> list[Qdisc]:
        """Return all qdiscs of a link."""
        with self._asking("qdiscs") as rtnetlink:
            return [
                Qdisc(m.get_attr("TCA_KIND"), m["handle"], m["parent"])
                for m in rtnetlink.get_qdiscs(index=ifindex)
            ]

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
            ifindex: int = rtnetlink.link_lookup(ifname=name)[0]
            rtnetlink.link("set", index=ifindex, state="up")
            return ifindex

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
        with self._asking(f"class {class_id >> 16:x}:{class_id & 0xFFFF:x}") as rtnetlink:
            classes = (m for m in rtnetlink.get_classes(index=ifindex) if m["handle"] == class_id)
            found = next((m for m in classes if m.get_attr("TCA_KIND") == "htb"), None)
            if found is None:
                raise GoneError(f"no HTB class {class_id:#x} on link {ifindex}")
            _send_class(rtnetlink, found, ceil)

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
            code = int(error.code)
            words = f"{what}: {error.args[1] if len(error.args) > 1 else error}"
            if code == errno.ENODEV:
                raise GoneError(words) from None
            raise RefusedError(code, words) from None


def _link(message: Any) -> Link:
    info = message.get_attr("IFLA_LINKINFO")
    return Link(
        message["index"],
        message.get_attr("IFLA_IFNAME"),
        (info.get_attr("IFLA_INFO_KIND") if info else None) or "",
        message.get_attr("IFLA_LINK"),
        message.get_attr("IFLA_LINK_NETNSID"),
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


def _send_class(rtnetlink: Any, found: Any, ceil: int) -> None:
    from pyroute2.netlink import NLM_F_ACK, NLM_F_REQUEST
    from pyroute2.netlink.rtnl import RTM_NEWTCLASS
    from pyroute2.netlink.rtnl.tcmsg import tcmsg

    options = found.get_attr("TCA_OPTIONS")
    parms = options.get_attr("TCA_HTB_PARMS")
    # Rates beyond 32 bits are in attributes of their own, the old field is full then.
    fields = {name: parms[name] for name, _ in parms.fields} | {"ceil": min(ceil, _U32_MAX)}
    attributes: list[list[Any]] = [["TCA_HTB_PARMS", fields]]
    attributes += [["TCA_HTB_RTAB", True], ["TCA_HTB_CTAB", True]]
    rate = options.get_attr("TCA_HTB_RATE64")
    if rate:
        attributes.append(["TCA_HTB_RATE64", rate])
    if ceil > _U32_MAX:
        attributes.append(["TCA_HTB_CEIL64", ceil])
    message = tcmsg()
    for name in ("index", "handle", "parent"):
        message[name] = found[name]
    message["attrs"] = [["TCA_KIND", "htb"], ["TCA_OPTIONS", {"attrs": attributes}]]
    rtnetlink.nlm_request(message, RTM_NEWTCLASS, NLM_F_REQUEST | NLM_F_ACK)


def _process_in(namespace: str) -> int | None:
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):
            if str(path.stat().st_ino) == namespace:
                return int(path.parts[2])
    return None
