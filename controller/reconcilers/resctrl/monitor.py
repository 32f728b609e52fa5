# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Cache occupancy and memory bandwidth of workloads, by monitoring groups of resctrl.

A group costs one of the few RMIDs, so services come first, and some are left to others. A
group lies in the control group that the tasks are in anyway: it changes what is counted and
nothing else. Tasks that somebody else watches stay where they are; if that group holds a
workload and nobody else, its counters are used as they are.
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
from controller.config.sections.knobs import ResctrlConfig
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
# What one tick does at most: reading a group asks a CPU of each cache, some 10 us here; a scan
# lists a cgroup's tasks and asks where the new ones are.
_READS_PER_TICK = 8
_SCANS_PER_TICK = 2
# All tasks are asked again now and then: their numbers are used again by others.
_SCANS_UNTIL_ANEW = 12
# Somebody removes a group of ours: that often it is made again in ten minutes.
_AGAIN_LIMIT = 3
_SCANS_UNTIL_FORGIVEN = 120
_CLASS_ORDER = (QosClass.LS, QosClass.BE, QosClass.SYSTEM)


class ResctrlMonitor:
    """Follows the cache use of workloads; off, with the reason in ``problem``, if it cannot.

    ``state`` is what there was a second ago at most, for metrics.

    :param executor: makes and removes the groups; its journal undoes that.
    :param layout: where the cgroups of the workloads are.
    """

    def __init__(self, config: ResctrlConfig, executor: Executor, layout: CgroupLayout) -> None:
        self._config = config
        self._executor = executor
        self._layout = layout
        self._watches: dict[CgroupId, MonitoredWorkload] = {}
        self._queue: deque[MonitoredWorkload] = deque()
        self._room = 0
        self._room_due_ns = self._state_due_ns = 0
        self.problem = ""
        self._mount: ResctrlMount | None = None
        self._info: ResctrlInfo | None = None
        self._features: frozenset[str] = frozenset()
        self._open()
        self.state = summary(self.problem, self._watches.values())

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Watch some of *workloads* from now on, and nobody else."""
        if self._mount is None:
            return
        wanted = {w.cgroup: w for w in workloads}
        for cgroup in [c for c in self._watches if c not in wanted]:
            self._release(self._watches.pop(cgroup))
        for cgroup, workload in wanted.items():
            self._watches.setdefault(cgroup, MonitoredWorkload(workload)).workload = workload
        self._watches = dict(sorted(self._watches.items(), key=_by_class))
        # Who waited longest is looked at next, the new ones at once.
        self._queue = deque(sorted(self._watches.values(), key=attrgetter("scan_due_ns")))

    def poll(self, now_ns: int) -> Mapping[CgroupId, CacheUse]:
        """Keep up with tasks, and return what is known; at most some seconds old.

        Only a bounded part of the work is done in each call.
        """
        if self._mount is None:
            return {}
        if now_ns >= self._room_due_ns:
            self._room_due_ns = now_ns + _SCAN_NS
            try:
                self._make_room()
                self.problem = ""
            except OSError as error:  # unmounted under our hands
                self.problem = str(error)
                self.state = summary(self.problem, self._watches.values())
                return {}
        for _ in range(min(_SCANS_PER_TICK, len(self._queue))):
            watch = self._queue[0]
            if watch.scan_due_ns > now_ns:
                break
            self._queue.rotate(-1)
            watch.scan_due_ns = now_ns + _SCAN_NS
            self._guarded_scan(watch)
        counted = [w for w in self._watches.values() if w.group is not None]
        due = sorted(
            (w for w in counted if w.count_due_ns <= now_ns), key=attrgetter("count_due_ns")
        )
        for watch in due[:_READS_PER_TICK]:
            watch.count_due_ns = now_ns + _READ_NS
            if not watch.count():
                self._mark_lost(watch)
        if now_ns >= self._state_due_ns:
            self._state_due_ns = now_ns + _READ_NS
            self.state = summary(self.problem, self._watches.values())
        return {w.workload.cgroup: w.use for w in counted if w.use != NOTHING}

    def reset(self) -> None:
        """Take note that everything of ours was undone; begin again."""
        for watch in self._watches.values():
            watch.detach()
        self._room_due_ns = 0

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

    def _make_room(self) -> None:
        """Count how many groups we may have, and let those go that come last if too many."""
        assert self._mount is not None and self._info is not None
        limit = self._info.rmids - self._config.rmid_reserve - count_others(self._mount.point)
        owners = [w for w in self._watches.values() if w.owns]
        self._room = limit - len(owners)
        # A service that found no room takes the place of the last one that is none.
        waiting = [w for w in self._watches.values() if w.wants and w.is_service]
        for watch in reversed(owners):
            if self._room < (0 if watch.is_service else len(waiting)):
                self._release(watch)
        if self._room > 0:
            for watch in waiting:
                self._scan_soon(watch)

    def _scan_soon(self, watch: MonitoredWorkload) -> None:
        watch.scan_due_ns = 0
        self._queue.remove(watch)
        self._queue.appendleft(watch)

    def _guarded_scan(self, watch: MonitoredWorkload) -> None:
        try:
            self._scan(watch)
        except (GoneError, FileNotFoundError):
            self._mark_lost(watch)
        except RefusedError as error:
            watch.log_problem(str(error))

    def _scan(self, watch: MonitoredWorkload) -> None:
        """Bring the group of *watch* and the tasks in it in line with where its tasks are."""
        target = Target(TargetKind.CGROUP, *watch.workload.cgroup, watch.workload.path)
        found = members(self._layout.mount, self._layout.version, [(target, "")])
        tids = {tid for tid, _ in found}
        self._send_back(watch, watch.tasks - tids)
        watch.tasks &= tids
        watch.scans += 1
        watch.wants = False
        if watch.scans % _SCANS_UNTIL_FORGIVEN == 0:
            watch.lost = 0
        if watch.scans % _SCANS_UNTIL_ANEW == 0 or _was_moved(watch):
            watch.tasks = set()
        places = dict(group_membership(iter(sorted(tids - watch.tasks))))
        if not places:
            return
        if watch.adopted or watch.group is None or not watch.tasks:
            self._choose(watch, places)
        group = watch.group
        if group is None or watch.adopted:
            return
        ours = watch.place
        movable = [t for t, place in places.items() if place == GroupMembership(watch.control, "")]
        watch.tasks |= {t for t, place in places.items() if place == ours} | put(group, movable)
        watch.elsewhere = len(tids) - len(watch.tasks)

    def _choose(self, watch: MonitoredWorkload, places: Mapping[int, GroupMembership]) -> None:
        """Decide which group counts for *watch*, by where its tasks are."""
        free = [p.control for p in places.values() if p.monitor in ("", watch.name)]
        free = [control for control in free if control in ("", self._config.group)]
        if self._config.adopted:
            free = [control for control in free if control == ""]
        if not free:
            self._adopt(watch, places)
            return
        control = max(sorted(set(free)), key=free.count)
        if watch.group is None or watch.adopted or watch.control != control:
            self._release(watch)
            self._make(watch, control)

    def _adopt(self, watch: MonitoredWorkload, places: Mapping[int, GroupMembership]) -> None:
        """Use the counters of somebody else's group that holds this workload and nobody else."""
        assert self._mount is not None
        groups = {group_path(place) for place in places.values()}
        if len(groups) != 1:
            self._release(watch)
            watch.elsewhere = len(places)
            return
        (path,) = groups
        directory = self._mount.point / path
        try:
            inode = directory.stat().st_ino
            inside = {int(tid) for tid in (directory / "tasks").read_text("ascii").split()}
        except OSError:
            return
        if inside - places.keys():  # others are in it, or came just now
            self._release(watch)
            watch.elsewhere = len(places)
        elif watch.group is None or watch.group.id != inode:
            self._release(watch)
            group = Target(TargetKind.RESCTRL_GROUP, str(self._mount.point), inode, path)
            watch.attach(group, self._features, adopted=True)

    def _make(self, watch: MonitoredWorkload, control: str) -> None:
        assert self._mount is not None
        waiting = sum(w.wants and w.is_service for w in self._watches.values())
        watch.wants = self._room <= (0 if watch.is_service else waiting)
        if watch.wants or watch.lost > _AGAIN_LIMIT:
            return
        path = group_path(GroupMembership(control, watch.name))
        place = Target(TargetKind.RESCTRL_GROUP, str(self._mount.point), 0, path)
        outcome = self._act(place, ABSENT, PRESENT)
        if outcome.failure is not None or outcome.applied is None:
            watch.log_problem(outcome.message)
        elif outcome.foreign is not None:
            watch.log_problem(f"resctrl group {path} was not made by this program: remove it")
        else:
            self._room -= 1
            watch.control = control
            inode = int(outcome.applied.split()[1])
            watch.attach(place._replace(id=inode), self._features, adopted=False)

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

    def _release(self, watch: MonitoredWorkload) -> None:
        """Remove the group of *watch*, if it is ours; its tasks fall back."""
        if watch.group is not None and not watch.adopted:
            value = KnobValue(f"{PRESENT} {watch.group.id}")
            self._act(watch.group._replace(id=0), value, ABSENT)
            self._room += 1
        watch.detach()

    def _mark_lost(self, watch: MonitoredWorkload) -> None:
        """Somebody removed the group: make it again, but not for ever."""
        if watch.group is not None and not watch.adopted:
            watch.lost += 1
            self._room += 1
            self._executor.read([watch.group._replace(id=0)])  # the journal hears of it
        if watch.lost > _AGAIN_LIMIT:
            watch.log_problem(f"{watch.name} was removed by somebody else too often")
        watch.detach()
        self._scan_soon(watch)

    def _send_back(self, watch: MonitoredWorkload, tids: set[int]) -> None:
        """Take those of *tids* that left the workload, but not its group, out of the group."""
        ours = watch.place
        left = [tid for tid, place in group_membership(iter(tids)) if place == ours]
        if left and watch.group is not None:
            assert self._mount is not None
            path = self._mount.point / watch.control
            put(watch.group._replace(path=watch.control, id=path.stat().st_ino), left)


def _was_moved(watch: MonitoredWorkload) -> bool:
    """Whether one of the tasks in the group is not there any more, so perhaps all of them."""
    return any(p != watch.place for _, p in group_membership(itertools.islice(watch.tasks, 1)))


def _by_class(item: tuple[CgroupId, MonitoredWorkload]) -> int:
    return _CLASS_ORDER.index(item[1].workload.qos)
