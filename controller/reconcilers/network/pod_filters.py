# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Traffic classes of workloads: assigned to cgroups and veths, with filters at the veths of pods.

Packets of a workload in a network namespace of its own are classified at its veth, packets of a
workload in the host's namespace by its cgroup2 directory. Where workloads of several classes share
a namespace, the cgroups of their sockets decide, and a packet without a socket gets the best class
among them.

``host_ends`` finds the host's ends of the veths of a pod. The link in the pod's namespace has the
index of its peer, but a pod with CAP_NET_ADMIN can make links. A pair is therefore accepted only if
the link in the host's namespace has the index of the pod's link and the id of the pod's namespace
as its peer: these are set by the kernel.
"""

from collections.abc import Iterable, Mapping
import contextlib
from fnmatch import fnmatchcase
import logging
import os
from pathlib import Path
import struct

from actuators.base import GoneError, RefusedError
from actuators.executor import Executor
from actuators.tc.netlink import Link, Netlink, network_namespace
from actuators.tc.shape import ABSENT, CLASS_OF_TIER, CLASSIFIED, FIRST_LIMIT, is_absent
from controller.config.sections.network import LimitRule
from controller.core.decision import Action, Failure, Outcome
from controller.core.model import CgroupId, Knob, KnobValue, QosClass, Target, TargetKind, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.host.rtnetlink import RouteSocket, attributes
from controller.probes.tc_classifier import Classifier

__all__ = (
    "PodFilters",
    "class_of",
    "first_process",
    "host_ends",
)

_log = logging.getLogger(__name__)

_GET_LINK = 18  # RTM_GETLINK
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
_U32 = struct.Struct("=I")
_IFLA_LINK, _IFLA_LINK_NETNSID = 5, 37


def first_process(layout: CgroupLayout, workload: Workload) -> int | None:
    """Return the pid of a process in the cgroup of *workload* or below; ``None``: there is none."""
    for folder, _, _ in os.walk(f"{layout.mount}{workload.path}"):
        with contextlib.suppress(OSError):
            processes = Path(folder, "cgroup.procs").read_text(encoding="ascii").split()
            if processes:
                return int(processes[0])
    return None


def host_ends(netlink: Netlink, pid: int) -> tuple[Link, ...] | None:
    """Return the host's ends of the veths of the network namespace of process *pid*.

    ``None``: the process is in the host's own namespace. Empty: the process has ended, or its
    namespace has no veth.

    :raises OSError: the agent may not enter the namespace.
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
    # (ifindex in the namespace, ifindex of the peer) of links with a peer in another namespace.
    found = []
    with contextlib.closing(RouteSocket(netns)) as inside:
        for answer in inside.dump(_GET_LINK, _LINK.pack(0, 0, 0, 0, 0)):
            found_attributes = attributes(answer, _LINK.size)
            if _IFLA_LINK in found_attributes and _IFLA_LINK_NETNSID in found_attributes:
                (outer,) = _U32.unpack(found_attributes[_IFLA_LINK])
                found.append((_LINK.unpack_from(answer)[2], outer))
    return found


# After how long the veths of a workload are looked up again. A pod gets its namespace within
# moments and keeps it; a starting container is in the host's namespace for an instant.
_LOOKUP_NS = NS_PER_SEC  # none found so far
_LOOKUP_HOST_NS = 30 * NS_PER_SEC  # in the host's namespace
_LOOKUP_FOUND_NS = 600 * NS_PER_SEC
_LOOKUPS_PER_RUN = 20
_RETRY_NS = 10 * NS_PER_SEC


def class_of(workload: Workload, limits: tuple[LimitRule, ...]) -> int:
    """Return the number of the HTB class of *workload*: that of its first limit, else its tier."""
    if workload.qos is QosClass.BE:
        for number, limit in enumerate(limits, FIRST_LIMIT):
            if fnmatchcase(workload.whole_name, limit.workload):
                return number
    return CLASS_OF_TIER[workload.qos]


class PodFilters:
    """Assigns the classes of workloads, and places filters at the veths of their pods.

    :param layout: the hierarchy with the cgroups of the workloads.
    :param limits: the rules of the configuration that have classes below the best-effort tier.
    :param classifier: holds the classes by cgroup and by link.
    """

    def __init__(
        self, layout: CgroupLayout, limits: tuple[LimitRule, ...], classifier: Classifier
    ) -> None:
        self._layout = layout
        self._limits = limits
        self._classifier = classifier
        self._classes: dict[CgroupId, int] = {}
        self._workloads: dict[CgroupId, Workload] = {}
        self._ends: dict[CgroupId, tuple[Target, ...]] = {}
        self._lookup_due_ns: dict[CgroupId, int] = {}
        self._placed: dict[Target, KnobValue] = {}  # with the value to put back
        self._retry_ns: dict[Target, int] = {}
        self._unverified: list[Target] = []
        self._due_ns = 0

    def set_workloads(
        self, workloads: Iterable[Workload], own: Mapping[CgroupId, int] | None = None
    ) -> None:
        """Set the workloads to classify from the next ``reconcile`` on.

        Packets of all other processes are in the class of the system tier.

        :param own: the classes of the workloads that have a class of their own, by ``whole``.
        """
        self._workloads = {w.cgroup: w for w in workloads if w.qos is not QosClass.SYSTEM}
        own = own or {}
        self._classes = {
            c: own.get(w.whole) or class_of(w, self._limits) for c, w in self._workloads.items()
        }
        self._ends = {c: ends for c, ends in self._ends.items() if c in self._workloads}
        self._lookup_due_ns = {c: self._lookup_due_ns.get(c, 0) for c in self._workloads}
        self._due_ns = 0

    def reset(self) -> None:
        """Start over after all filters were removed."""
        self._placed.clear()
        self._retry_ns.clear()
        self._due_ns = 0

    def reconcile(self, executor: Executor, now_ns: int) -> None:
        """Look up veths, assign classes and place missing filters; at most once a second."""
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _LOOKUP_NS
        self._look_up(now_ns)
        links: dict[Target, int] = {}
        for cgroup, ends in self._ends.items():
            for end in ends:
                links[end] = min(links.get(end, 0xFFFF), self._classes[cgroup])
        self._classifier.assign(
            cgroups=self._cgroups(), links={end.id: number for end, number in links.items()}
        )
        self._retry_ns = {t: at for t, at in self._retry_ns.items() if t in links}
        self._verify_one(executor)
        for target in links.keys() - self._placed.keys():
            if now_ns >= self._retry_ns.get(target, 0):
                self._place(executor, target, now_ns)
        for target in self._placed.keys() - links.keys():
            self._remove(executor, target, now_ns)

    def _look_up(self, now_ns: int) -> None:
        due = [c for c, at in self._lookup_due_ns.items() if now_ns >= at][:_LOOKUPS_PER_RUN]
        if not due:
            return
        with contextlib.suppress(RefusedError), Netlink() as netlink:
            scope = network_namespace()
            for cgroup in due:
                pid = first_process(self._layout, self._workloads[cgroup])
                try:
                    links = () if pid is None else host_ends(netlink, pid)
                except (GoneError, RefusedError, OSError) as error:
                    _log.debug("%s: its veths: %s", self._workloads[cgroup].path, error)
                    self._lookup_due_ns[cgroup] = now_ns + _RETRY_NS
                    continue
                self._ends[cgroup] = tuple(
                    Target(TargetKind.VETH, scope, link.ifindex, link.name) for link in links or ()
                )
                if links is None:
                    rest_ns = _LOOKUP_HOST_NS
                else:
                    rest_ns = _LOOKUP_FOUND_NS if links else _LOOKUP_NS
                self._lookup_due_ns[cgroup] = now_ns + rest_ns

    def _cgroups(self) -> dict[int, int]:
        found = {}
        for cgroup, number in self._classes.items():
            if cgroup.hierarchy == "v2":
                found[cgroup.id] = number
            elif self._layout.unified is not None:
                try:
                    path = f"{self._layout.unified}{self._workloads[cgroup].path}"
                    found[os.stat(path).st_ino] = number  # noqa: PTH116 - half the time of Path
                except (FileNotFoundError, NotADirectoryError):
                    continue
        return found

    def _verify_one(self, executor: Executor) -> None:
        # One veth in each run: reading all of them at once would make a long tick.
        if not self._unverified:
            self._unverified = list(self._placed)
        if not self._unverified:
            return
        target = self._unverified.pop()
        readings = {r.knob: r.value for r in executor.read([target])}
        if target in self._placed and readings.get(Knob.TC_MARK) != CLASSIFIED:
            del self._placed[target]
            self._lookup_due_ns = dict.fromkeys(self._lookup_due_ns, 0)

    def _place(self, executor: Executor, target: Target, now_ns: int) -> None:
        before = next((r.value for r in executor.read([target])), None)
        if before is None:  # the veth is gone
            self._retry_ns[target] = now_ns + _RETRY_NS
            return
        outcome = self._write(executor, target, before, CLASSIFIED, now_ns)
        if outcome.applied == CLASSIFIED:
            # The value before may be ours, or what another program left of it.
            original = outcome.original
            self._placed[target] = original if original and is_absent(original) else ABSENT

    def _remove(self, executor: Executor, target: Target, now_ns: int) -> None:
        if now_ns >= self._retry_ns.get(target, 0):
            before = self._placed[target]
            outcome = self._write(executor, target, CLASSIFIED, before, now_ns)
            if outcome.failure is not Failure.REFUSED:
                del self._placed[target]

    def _write(
        self, executor: Executor, target: Target, previous: KnobValue, value: KnobValue, now_ns: int
    ) -> Outcome:
        action = Action(
            target=target,
            knob=Knob.TC_MARK,
            previous=previous,
            value=value,
            reason="telling a pod's packets apart",
        )
        (outcome,) = executor.execute([action], now_ns=now_ns)
        if outcome.failure is not None or outcome.foreign is not None:
            self._retry_ns[target] = now_ns + _RETRY_NS
        else:
            self._retry_ns.pop(target, None)
        return outcome
