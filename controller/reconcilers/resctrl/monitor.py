# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Cache occupancy and memory bandwidth of workloads, measured by resctrl monitoring groups.

A monitoring group takes one of the few RMIDs. Services get groups before other workloads, and
``rmid_reserve`` RMIDs are left to other programs. A group is made inside the control group that
the tasks are already in, so it changes what is counted and no limit.

Tasks in a monitoring group of another program stay there. If such a group holds all tasks of one
workload and no other task, it is adopted: its counters are used for the workload.
"""

from collections import deque
from collections.abc import Iterable, Mapping
import itertools
from operator import attrgetter
import time

from actuators.base import GoneError, RefusedError
from actuators.executor import Executor
from actuators.resctrl.objects import ABSENT, PRESENT
from actuators.resctrl.tasks import put
from actuators.tasks import members
from controller.config.sections.resctrl import ResctrlConfig
from controller.core.decision import Action, Outcome
from controller.core.model import CgroupId, Knob, KnobValue, QosClass, Target, TargetKind, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.host.resctrl import ResctrlInfo, ResctrlMount, find_mount, read_info
from controller.probes.resctrl import CacheUse, GroupMembership, group_membership
from controller.reconcilers.resctrl.monitored import (
    NOTHING,
    MonitoredWorkload,
    count_others,
    group_path,
    summary,
)

__all__ = ("ResctrlMonitor",)

_READ_NS = NS_PER_SEC
_SCAN_NS = 5 * NS_PER_SEC
# Bounds of the work in one tick. To read a group, the kernel runs code on a CPU of each cache, some
# 10 us here; a scan lists the tasks of a cgroup and reads the group of the new ones.
_READS_PER_TICK = 8
_SCANS_PER_TICK = 2
# In every 12th scan (a minute) the group of all tasks is read: the kernel reuses task ids.
_SCANS_PER_FULL_SCAN = 12
# How often a group that another program removed is made again in 120 scans (ten minutes).
_REPAIR_LIMIT = 3
_SCANS_UNTIL_RESET = 120
_CLASS_ORDER = (QosClass.LS, QosClass.BE, QosClass.SYSTEM)


class ResctrlMonitor:
    """Measures the cache use of workloads; off, with the reason in ``problem``, if it cannot.

    ``state`` is the state for reports, at most one second old.

    :param executor: makes and removes the groups; its journal undoes that.
    :param layout: the hierarchy with the cgroups of the workloads.
    """

    def __init__(self, config: ResctrlConfig, executor: Executor, layout: CgroupLayout) -> None:
        self._config = config
        self._executor = executor
        self._layout = layout
        self._monitored: dict[CgroupId, MonitoredWorkload] = {}
        self._queue: deque[MonitoredWorkload] = deque()
        # How many groups may still be made; negative: so many have to be removed.
        self._free = 0
        self._limit_due_ns = self._state_due_ns = 0
        self.problem = ""
        self._mount: ResctrlMount | None = None
        self._info: ResctrlInfo | None = None
        self._features: frozenset[str] = frozenset()
        self._open()
        self.state = summary(self.problem, self._monitored.values())

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Set the present workloads; as many of them as there are RMIDs for are measured."""
        if self._mount is None:
            return
        wanted = {w.cgroup: w for w in workloads}
        for cgroup in [c for c in self._monitored if c not in wanted]:
            self._release(self._monitored.pop(cgroup))
        for cgroup, workload in wanted.items():
            self._monitored.setdefault(cgroup, MonitoredWorkload(workload)).workload = workload
        self._monitored = dict(sorted(self._monitored.items(), key=_by_class))
        # The workload whose scan is due longest is first; new ones are due at once.
        self._queue = deque(sorted(self._monitored.values(), key=attrgetter("scan_due_ns")))

    def poll(self, now_ns: int) -> Mapping[CgroupId, CacheUse]:
        """Move new tasks into their groups and return the cache use of the measured workloads.

        Each call does a bounded part of the work, so a value can be some seconds old.
        """
        if self._mount is None:
            return {}
        if now_ns >= self._limit_due_ns:
            self._limit_due_ns = now_ns + _SCAN_NS
            try:
                self._enforce_limit()
                self.problem = ""
            except OSError as error:  # resctrl was unmounted
                self.problem = str(error)
                self.state = summary(self.problem, self._monitored.values())
                return {}
        for _ in range(min(_SCANS_PER_TICK, len(self._queue))):
            entry = self._queue[0]
            if entry.scan_due_ns > now_ns:
                break
            self._queue.rotate(-1)
            entry.scan_due_ns = now_ns + _SCAN_NS
            self._guarded_scan(entry)
        measured = [w for w in self._monitored.values() if w.group is not None]
        due = sorted(
            (w for w in measured if w.count_due_ns <= now_ns), key=attrgetter("count_due_ns")
        )
        for entry in due[:_READS_PER_TICK]:
            entry.count_due_ns = now_ns + _READ_NS
            if not entry.count():
                self._mark_lost(entry)
        if now_ns >= self._state_due_ns:
            self._state_due_ns = now_ns + _READ_NS
            self.state = summary(self.problem, self._monitored.values())
        return {w.workload.cgroup: w.use for w in measured if w.use != NOTHING}

    def reset(self) -> None:
        """Start over after everything of the agent was undone."""
        for entry in self._monitored.values():
            entry.detach()
        self._limit_due_ns = 0

    def _open(self) -> None:
        self._mount = find_mount()
        if not self._config.monitor:
            self.problem, self._mount = "switched off by the configuration", None
        elif self._mount is None:
            self.problem = "resctrl is not mounted"
        else:
            try:
                self._info = read_info(self._mount)
            except (OSError, ValueError) as error:
                self.problem, self._mount = str(error), None
                return
            self._features = self._info.features
            if not self._features:
                self.problem, self._mount = "this hardware cannot monitor caches", None

    def _enforce_limit(self) -> None:
        """Count how many groups may be made, and remove the last ones if there are too many."""
        assert self._mount is not None and self._info is not None
        limit = self._info.rmids - self._config.rmid_reserve - count_others(self._mount.point)
        owners = [w for w in self._monitored.values() if w.owns]
        self._free = limit - len(owners)
        # A service without a group takes the RMID of the last workload that is not a service.
        waiting = [w for w in self._monitored.values() if w.wants and w.is_service]
        for entry in reversed(owners):
            if self._free < (0 if entry.is_service else len(waiting)):
                self._release(entry)
        if self._free > 0:
            for entry in waiting:
                self._scan_soon(entry)

    def _scan_soon(self, entry: MonitoredWorkload) -> None:
        entry.scan_due_ns = 0
        self._queue.remove(entry)
        self._queue.appendleft(entry)

    def _guarded_scan(self, entry: MonitoredWorkload) -> None:
        try:
            self._scan(entry)
        except (GoneError, FileNotFoundError):
            self._mark_lost(entry)
        except (RefusedError, OSError) as error:
            entry.log_problem(f"{entry.workload.name}: {error}")

    def _scan(self, entry: MonitoredWorkload) -> None:
        """Bring the group of *entry* in line with the tasks of its workload."""
        target = Target(TargetKind.CGROUP, *entry.workload.cgroup, entry.workload.path)
        found = members(self._layout.mount, self._layout.version, [(target, "")])
        tids = {tid for tid, _ in found}
        self._return_tasks(entry, entry.tasks - tids)
        entry.tasks &= tids
        entry.scans += 1
        entry.wants = False
        if entry.scans % _SCANS_UNTIL_RESET == 0:
            entry.lost = 0
        if entry.scans % _SCANS_PER_FULL_SCAN == 0 or _was_moved(entry):
            entry.tasks = set()
        places = dict(group_membership(iter(sorted(tids - entry.tasks))))
        if not places:
            return
        if entry.adopted or entry.group is None or not entry.tasks:
            self._choose(entry, places)
        group = entry.group
        if group is None or entry.adopted:
            return
        ours = entry.place
        movable = [t for t, place in places.items() if place == GroupMembership(entry.control, "")]
        entry.tasks |= {t for t, place in places.items() if place == ours} | put(group, movable)
        entry.elsewhere = len(tids) - len(entry.tasks)

    def _choose(self, entry: MonitoredWorkload, places: Mapping[int, GroupMembership]) -> None:
        """Choose the group that measures *entry*, by the groups that its tasks are in."""
        free = [p.control for p in places.values() if p.monitor in ("", entry.name)]
        free = [each for each in free if not each or each in self._config.own_groups]
        if not free:
            self._adopt(entry, places)
            return
        control = max(sorted(set(free)), key=free.count)
        if entry.group is None or entry.adopted or entry.control != control:
            self._release(entry)
            self._make(entry, control)

    def _adopt(self, entry: MonitoredWorkload, places: Mapping[int, GroupMembership]) -> None:
        """Use the group of another program if it holds all tasks of *entry* and no others."""
        assert self._mount is not None
        groups = {group_path(place) for place in places.values()}
        if len(groups) != 1:
            self._release(entry)
            entry.elsewhere = len(places)
            return
        (path,) = groups
        directory = self._mount.point / path
        try:
            inode = directory.stat().st_ino
            inside = {int(tid) for tid in (directory / "tasks").read_text("ascii").split()}
        except OSError:
            return
        if inside - places.keys():  # other tasks, or tasks that were forked just now
            self._release(entry)
            entry.elsewhere = len(places)
        elif entry.group is None or entry.group.id != inode:
            self._release(entry)
            group = Target(TargetKind.RESCTRL_GROUP, str(self._mount.point), inode, path)
            entry.attach(group, self._features, adopted=True)

    def _make(self, entry: MonitoredWorkload, control: str) -> None:
        assert self._mount is not None
        waiting = sum(w.wants and w.is_service for w in self._monitored.values())
        entry.wants = self._free <= (0 if entry.is_service else waiting)
        if entry.wants or entry.lost > _REPAIR_LIMIT:
            return
        path = group_path(GroupMembership(control, entry.name))
        place = Target(TargetKind.RESCTRL_GROUP, str(self._mount.point), 0, path)
        outcome = self._act(place, ABSENT, PRESENT)
        if outcome.failure is not None or outcome.applied is None:
            entry.log_problem(outcome.message)
        elif outcome.foreign is not None:
            entry.log_problem(f"resctrl group {path} was not made by this program: remove it")
        else:
            self._free -= 1
            entry.control = control
            inode = int(outcome.applied.split()[1])
            entry.attach(place._replace(id=inode), self._features, adopted=False)

    def _act(self, place: Target, previous: KnobValue, value: KnobValue) -> Outcome:
        action = Action(
            target=place,
            knob=Knob.RESCTRL_MONITOR,
            previous=previous,
            value=value,
            reason="cache use of a workload",
        )
        (outcome,) = self._executor.execute([action], now_ns=time.monotonic_ns())
        return outcome

    def _release(self, entry: MonitoredWorkload) -> None:
        """Remove the group of *entry* if the agent made it; the kernel moves its tasks back."""
        if entry.group is not None and not entry.adopted:
            value = KnobValue(f"{PRESENT} {entry.group.id}")
            self._act(entry.group._replace(id=0), value, ABSENT)
            self._free += 1
        entry.detach()

    def _mark_lost(self, entry: MonitoredWorkload) -> None:
        """Handle a removed group: it is made again, but only ``_REPAIR_LIMIT`` times."""
        if entry.group is not None and not entry.adopted:
            entry.lost += 1
            self._free += 1
            self._executor.read([entry.group._replace(id=0)])  # a read removes it from the journal
        if entry.lost > _REPAIR_LIMIT:
            entry.log_problem(f"{entry.name} was removed too often by another program")
        entry.detach()
        self._scan_soon(entry)

    def _return_tasks(self, entry: MonitoredWorkload, tids: set[int]) -> None:
        """Move those of *tids* out of the group that left the workload but are still in it."""
        ours = entry.place
        left = [tid for tid, place in group_membership(iter(tids)) if place == ours]
        if left and entry.group is not None:
            assert self._mount is not None
            path = self._mount.point / entry.control
            put(entry.group._replace(path=entry.control, id=path.stat().st_ino), left)


def _was_moved(entry: MonitoredWorkload) -> bool:
    """Whether a task of the group is in another group now, as all of them may be then."""
    return any(p != entry.place for _, p in group_membership(itertools.islice(entry.tasks, 1)))


def _by_class(item: tuple[CgroupId, MonitoredWorkload]) -> int:
    return _CLASS_ORDER.index(item[1].workload.qos)
