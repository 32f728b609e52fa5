# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One workload and the group of resctrl that counts for it.

How many of the RMIDs are taken by groups that are not monitoring groups of ours.

The kernel tells how many there are (``info/L3_MON/num_rmids``) and not how many are free.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
import logging
from pathlib import Path

from actuators.resctrl.fs import PREFIX
from controller.core.model import (
    QosClass,
    Target,
    Workload,
)
from controller.probes.resctrl import CacheUse, GroupCounters, GroupMembership, MonitorError

__all__ = (
    "NOTHING",
    "MonitorState",
    "MonitoredWorkload",
    "count_others",
    "group_path",
    "summary",
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorState:
    """The groups of resctrl that count for workloads.

    ``groups`` are ours and ``adopted`` those of others that hold one workload each;
    ``without_room`` are workloads for which there was no RMID, ``elsewhere`` tasks that somebody
    else watches, and ``errors`` readings that the kernel refused.
    """

    problem: str
    groups: int
    adopted: int
    without_room: int
    elsewhere: int
    errors: int


NOTHING = CacheUse(None, None)


@dataclass(slots=True)
class MonitoredWorkload:
    """What is known of *workload*; ``group`` counts for it, made by us unless ``adopted``.

    ``control`` is the control group that ``group`` lies in, ``tasks`` are those known to be in
    it, ``elsewhere`` counts those that are not. ``wants``: it would have a group if there were
    room. ``lost`` counts how often somebody else removed its group, ``errors`` what the kernel
    could not read.
    """

    workload: Workload
    scan_due_ns: int = 0
    count_due_ns: int = 0
    group: Target | None = None
    adopted: bool = False
    control: str = ""
    tasks: set[int] = field(default_factory=set)
    elsewhere: int = 0
    wants: bool = False
    scans: int = 0
    lost: int = 0
    errors: int = 0
    problem: str = ""
    use: CacheUse = NOTHING
    _counters: GroupCounters | None = None
    _before_bytes: int = 0  # counted by groups that are no more

    @property
    def name(self) -> str:
        """The name of a group of ours for it."""
        return f"{PREFIX}{self.workload.cgroup.id}"

    @property
    def place(self) -> GroupMembership:
        """Where a task in the group of ours is."""
        return GroupMembership(self.control, self.name)

    @property
    def owns(self) -> bool:
        """Whether it has a group that we made."""
        return self.group is not None and not self.adopted

    @property
    def is_service(self) -> bool:
        """Whether its group may take the place of others."""
        return self.workload.qos is QosClass.LS

    def attach(self, group: Target, features: frozenset[str], *, adopted: bool) -> None:
        """Let *group* count for it from now on."""
        self.group, self.adopted = group, adopted
        self._counters = GroupCounters(group, features)
        self.elsewhere = 0
        self.problem = ""

    def detach(self) -> None:
        """Nothing counts for it any more."""
        if self._counters is not None:
            self._before_bytes += self._counters.counted_bytes
        self.group = self._counters = None
        self.adopted = False
        self.tasks = set()
        self.use = NOTHING

    def count(self) -> bool:
        """Read the counters; whether the group is still there."""
        if self._counters is None:
            return True
        try:
            use = self._counters.poll()
        except MonitorError as error:
            self.errors += 1
            self.log_problem(f"{self.workload.name}: {error}")
            self.use = NOTHING
            return True
        if use is None:
            return False
        self.problem = ""
        total = use.memory_bandwidth_bytes
        total = None if total is None else self._before_bytes + total
        self.use = CacheUse(use.llc_occupancy_bytes, total)
        return True

    def log_problem(self, text: str) -> None:
        """Keep *text* as the problem, and log it if it is a new one."""
        if self.problem != text:
            _log.warning("%s", text)
        self.problem = text


def group_path(place: GroupMembership) -> str:
    """Return the path of a group below the mount; that of the root group is empty."""
    inner = f"mon_groups/{place.monitor}" if place.monitor else ""
    return "/".join(filter(None, (place.control, inner)))


def summary(problem: str, watches: Collection[MonitoredWorkload]) -> MonitorState:
    """Return what there is; *problem* is why there is nothing, if that is so."""
    return MonitorState(
        problem=problem or next((w.problem for w in watches if w.problem), ""),
        groups=sum(w.owns for w in watches),
        adopted=sum(w.adopted for w in watches),
        without_room=sum(w.wants for w in watches),
        elsewhere=sum(w.elsewhere for w in watches),
        errors=sum(w.errors for w in watches),
    )


_MONITORS = "mon_groups"
_FIXED = frozenset({"info", "mon_data", _MONITORS})


def count_others(mount: Path) -> int:
    """Return the number of groups, the root group and control groups of ours included.

    :raises OSError: nothing is mounted there any more.
    """
    (mount / "tasks").stat()
    controls = [e.name for e in mount.iterdir() if e.is_dir() and e.name not in _FIXED]
    inner = [name for control in ("", *controls) for name in _monitors(mount / control)]
    return 1 + len(controls) + sum(not name.startswith(PREFIX) for name in inner)


def _monitors(group: Path) -> Iterator[str]:
    try:
        yield from (entry.name for entry in (group / _MONITORS).iterdir())
    except FileNotFoundError:  # the group was removed just now
        return
