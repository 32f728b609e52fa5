# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the classifying programs and the filters at pods' veths in line with who is here.

A workload in a network namespace of its own is known by its veth, one in the host's by its
cgroup2 directory. Where workloads of several classes share a namespace, their sockets' cgroups
tell them apart, and what has no socket counts for the best class of them.

Where a pod's network comes out on this host: the host's ends of its veths.

The pod's side tells the number of the other end. It is believed only if the host's side says
the same of the pod's namespace, which is the kernel's word and not the pod's.
"""

from collections.abc import Iterable, Mapping
import contextlib
from fnmatch import fnmatchcase
import os
from pathlib import Path
import struct

from actuators.base import GoneError, RefusedError
from actuators.executor import Executor
from actuators.tc.netlink import Link, Netlink, network_namespace
from actuators.tc.shape import CLASS_OF_TIER, CLASSIFIED, FIRST_LIMIT
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


# A pod gets its namespace within moments, and keeps it. A container that starts is in the host's
# for an instant.
_LOOK_NS = NS_PER_SEC
_LOOK_HOST_NS = 30 * NS_PER_SEC
_LOOK_AGAIN_NS = 600 * NS_PER_SEC
_LOOKS_AT_ONCE = 20
_RETRY_NS = 10 * NS_PER_SEC


def class_of(workload: Workload, limits: tuple[LimitRule, ...]) -> int:
    """Return the number of the class that a workload belongs to."""
    if workload.qos is QosClass.BE:
        for number, limit in enumerate(limits, FIRST_LIMIT):
            if fnmatchcase(workload.name, limit.workload):
                return number
    return CLASS_OF_TIER[workload.qos]


class PodFilters:
    """Finds the veths of workloads and has filters put there.

    :param limits: what has a class below the best-effort tier.
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
        self._look_due_ns: dict[CgroupId, int] = {}
        self._placed: dict[Target, KnobValue] = {}  # with what was there before
        self._retry_ns: dict[Target, int] = {}
        self._round: list[Target] = []
        self._due_ns = 0

    @property
    def placed(self) -> int:
        """How many veths have our filters."""
        return len(self._placed)

    def set_workloads(
        self, workloads: Iterable[Workload], own: Mapping[CgroupId, int] | None = None
    ) -> None:
        """Classify *workloads* from the next ``tick`` on; all others are system.

        *own* are the classes of those that have one for themselves.
        """
        self._workloads = {w.cgroup: w for w in workloads if w.qos is not QosClass.SYSTEM}
        self._classes = {c: class_of(w, self._limits) for c, w in self._workloads.items()}
        self._classes |= {c: number for c, number in (own or {}).items() if c in self._classes}
        self._ends = {c: ends for c, ends in self._ends.items() if c in self._workloads}
        self._look_due_ns = {c: self._look_due_ns.get(c, 0) for c in self._workloads}
        self._due_ns = 0

    def reset(self) -> None:
        """Take note that all filters were removed."""
        self._placed.clear()
        self._retry_ns.clear()
        self._due_ns = 0

    def reconcile(self, executor: Executor, now_ns: int) -> None:
        """Look for veths and place what is missing, once a second."""
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _LOOK_NS
        self._scan(now_ns)
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

    def _scan(self, now_ns: int) -> None:
        due = [c for c, at in self._look_due_ns.items() if now_ns >= at][:_LOOKS_AT_ONCE]
        if not due:
            return
        with Netlink() as netlink:
            scope = network_namespace()
            for cgroup in due:
                pid = first_process(self._layout, self._workloads[cgroup])
                links = () if pid is None else host_ends(netlink, pid)
                self._ends[cgroup] = tuple(
                    Target(TargetKind.VETH, scope, link.ifindex, link.name) for link in links or ()
                )
                rest_ns = _LOOK_HOST_NS if links is None else _LOOK_AGAIN_NS if links else _LOOK_NS
                self._look_due_ns[cgroup] = now_ns + rest_ns

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
        # Every veth gets its turn; asking all of them at once would be a long tick.
        if not self._round:
            self._round = list(self._placed)
        if not self._round:
            return
        target = self._round.pop()
        readings = {r.knob: r.value for r in executor.read([target])}
        if target in self._placed and readings.get(Knob.TC_MARK) != CLASSIFIED:
            del self._placed[target]
            self._look_due_ns = dict.fromkeys(self._look_due_ns, 0)

    def _place(self, executor: Executor, target: Target, now_ns: int) -> None:
        before = next((r.value for r in executor.read([target])), None)
        if before is None:  # it left
            self._retry_ns[target] = now_ns + _RETRY_NS
            return
        outcome = self._write(executor, target, before, CLASSIFIED, now_ns)
        if outcome.applied == CLASSIFIED:
            self._placed[target] = before

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
