# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A workload with the resctrl group that measures it, and the number of RMIDs that are in use.

The kernel exports the number of all RMIDs (``info/L3_MON/num_rmids``) but not of the free ones, so
the groups that are not monitoring groups of the agent are counted.
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
    """State of the monitoring groups; ``problem`` is the reason why there are none.

    ``groups`` counts the groups of the agent, ``adopted`` those of other programs that hold one
    workload each, ``without_room`` workloads for which there was no RMID, ``elsewhere`` tasks in
    monitoring groups of other programs, and ``errors`` readings that the kernel refused.
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
    """A workload and ``group``, which measures it: made by the agent unless ``adopted``.

    ``control`` is the control group that contains ``group``. ``tasks`` are the tasks that are known
    to be in ``group``, ``elsewhere`` is the number of the other ones. ``wants``: the workload has
    no group because there is no free RMID. ``lost`` counts how often another program removed the
    group, ``errors`` the readings that the kernel refused.
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
    _before_bytes: int = 0  # counted by earlier groups

    @property
    def name(self) -> str:
        """The name of the group that the agent makes for the workload."""
        return f"{PREFIX}{self.workload.cgroup.id}"

    @property
    def place(self) -> GroupMembership:
        """The membership of a task in the group that the agent makes."""
        return GroupMembership(self.control, self.name)

    @property
    def owns(self) -> bool:
        """Whether the agent made the group."""
        return self.group is not None and not self.adopted

    @property
    def is_service(self) -> bool:
        """Whether the workload gets an RMID before others."""
        return self.workload.qos is QosClass.LS

    def attach(self, group: Target, features: frozenset[str], *, adopted: bool) -> None:
        """Measure the workload by *group* from now on."""
        self.group, self.adopted = group, adopted
        self._counters = GroupCounters(group, features)
        self.elsewhere = 0
        self.problem = ""

    def detach(self) -> None:
        """Stop measuring; the bytes counted so far stay in the total."""
        if self._counters is not None:
            self._before_bytes += self._counters.counted_bytes
        self.group = self._counters = None
        self.adopted = False
        self.tasks = set()
        self.use = NOTHING

    def count(self) -> bool:
        """Read the counters of the group into ``use``; return whether the group still exists."""
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
        """Set *text* as the problem, and log it if the problem was another one."""
        if self.problem != text:
            _log.warning("%s", text)
        self.problem = text


def group_path(place: GroupMembership) -> str:
    """Return the path of a group below the mount; the path of the root group is empty."""
    inner = f"mon_groups/{place.monitor}" if place.monitor else ""
    return "/".join(filter(None, (place.control, inner)))


def summary(problem: str, monitored: Collection[MonitoredWorkload]) -> MonitorState:
    """Return the state of *monitored*; *problem*, unless empty, goes before their problems."""
    return MonitorState(
        problem=problem or next((w.problem for w in monitored if w.problem), ""),
        groups=sum(w.owns for w in monitored),
        adopted=sum(w.adopted for w in monitored),
        without_room=sum(w.wants for w in monitored),
        elsewhere=sum(w.elsewhere for w in monitored),
        errors=sum(w.errors for w in monitored),
    )


_MONITORS = "mon_groups"
_FIXED = frozenset({"info", "mon_data", _MONITORS})


def count_others(mount: Path) -> int:
    """Return the number of RMIDs in use, less those of the agent's monitoring groups.

    Every group takes one RMID: the root group, control groups (the agent's own included), and
    monitoring groups.

    :raises OSError: resctrl is not mounted at *mount* any more.
    """
    (mount / "tasks").stat()
    controls = [e.name for e in mount.iterdir() if e.is_dir() and e.name not in _FIXED]
    inner = [name for control in ("", *controls) for name in _monitors(mount / control)]
    return 1 + len(controls) + sum(not name.startswith(PREFIX) for name in inner)


def _monitors(group: Path) -> Iterator[str]:
    try:
        yield from (entry.name for entry in (group / _MONITORS).iterdir())
    except FileNotFoundError:  # the group was removed meanwhile
        return
