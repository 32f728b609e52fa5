# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Core scheduling for the node: whether it is there, who carries a cookie, who shares a core.

Keeps the core-scheduling cookies of tasks in line with the cgroups that they are in.

A child inherits its parent's cookie, so most of what is born into a best-effort cgroup has the
right one. What is moved there, or made there from outside, has not; what leaves keeps ours.
"""

from collections.abc import Callable, Iterable
from itertools import chain
import logging
from typing import NamedTuple

from actuators.core_scheduling.cookie import BEST_EFFORT, CoreCookie, core_group
from actuators.core_scheduling.job import JobReport, Wanted
from actuators.tasks import all_tasks, members, threads
from controller.core.model import (
    CgroupId,
    QosClass,
    Target,
    TargetKind,
    Workload,
)
from controller.core.settings import CoreMode, CoreSettings
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import diff_workloads
from controller.host.facts import CgroupLayout, core_siblings
from controller.probes.cgroup_moves import Move, Moves
from controller.probes.sched import MAX_SLOTS, SchedProbe
from controller.probes.smt_overlap import OverlapMeter
from controller.reconcilers.task_scan import TaskScan
from controller.workloads.sched_idle import partial_idle

__all__ = (
    "CookieReconciler",
    "CoreScheduling",
    "CoreState",
)

_log = logging.getLogger(__name__)

_TIMEOUT_NS = 10 * NS_PER_SEC
# With more moves than this it is cheaper to look at everybody.
_MAX_MOVED = 2000


class CoreState(NamedTuple):
    """What is known of core scheduling, and of where sched-idle orders nothing.

    ``problem`` says why there are no cookies. ``carrying`` and ``foreign`` are tasks with our
    cookie and with somebody else's as of the last look at everybody, ``None`` before any;
    ``given``, ``cleared`` and ``failed`` count tasks, ``helpers`` processes since the start.
    ``overlap_ratio`` is ``Snapshot.core_overlap_ratio``. ``idle_partial`` are the cgroups whose
    idle does not give way to every service.
    """

    problem: str = ""
    carrying: int | None = None
    foreign: int | None = None
    given: int = 0
    cleared: int = 0
    failed: int = 0
    helpers: int = 0
    overlap_ratio: float | None = None
    idle_partial: tuple[str, ...] = ()


class CookieReconciler:
    """Sends helpers when tasks must be given a cookie or relieved of it.

    :param actuator: whose orders are to be kept; it runs the helpers.
    """

    def __init__(self, layout: CgroupLayout, actuator: CoreCookie) -> None:
        self._layout = layout
        self._actuator = actuator
        self._followed: tuple[Workload, ...] = ()
        self._groups: dict[CgroupId, tuple[Target, str]] = {}  # of the best-effort ones
        self._orders: frozenset[str] = frozenset()
        self._scan = TaskScan(_MAX_MOVED)
        # New here, of another group, or no longer best-effort.
        self._changed: dict[CgroupId, tuple[Target, str]] = {}
        self._started_ns = 0
        self._scanning = False
        self._problem = ""
        self.state = CoreState()

    @property
    def targets(self) -> tuple[Target, ...]:
        """The groups of those best-effort workloads that are here."""
        names = dict.fromkeys(group for _, group in self._groups.values())
        return tuple(map(core_group, names))

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Keep the best-effort ones of *workloads* from now on."""
        before, self._followed = self._followed, tuple(workloads)
        change = (
            diff_workloads(before, self._followed)
            .of_class(QosClass.BE)
            .by_fields("cgroup", "path", "core_group")
        )
        for each in change.removed:
            target, _ = self._groups.pop(each.cgroup)
            self._changed[each.cgroup] = target, ""
        for each in change.added:
            target = Target(TargetKind.CGROUP, *each.cgroup, each.path)
            entry = target, each.core_group or BEST_EFFORT
            self._groups[each.cgroup] = self._changed[each.cgroup] = entry

    def reconcile(self, now_ns: int, moves: Moves | None) -> None:
        """Look after what happened since the last tick; a helper's work shows in later ones.

        :param moves: as told by the members probe, ``None`` without one.
        """
        self._finish(now_ns)
        orders = self._actuator.registry.groups
        if orders != self._orders:
            self._orders = orders
            self._scan.request()
        if not orders:
            self._scan.take_moves()
            self._changed = {}
            return
        self._scan.update(moves)
        # A busy container runtime must not keep the agent forking: the rest is for moves as well.
        if self._actuator.busy or self._scan.resting(now_ns):
            return
        if self._scan.due(now_ns):
            self._scan.begin(now_ns)
            self._send(self._all_tasks(), now_ns, scanning=True)
        elif self._scan.moves or self._changed:
            self._scan.rest(now_ns)
            self._send(self._moved_tasks(self._scan.take_moves()), now_ns, scanning=False)

    def close(self) -> None:
        """End a helper that is at work."""
        self._actuator.cancel()

    def _send(self, wanted: Callable[[], Wanted], now_ns: int, *, scanning: bool) -> None:
        self._changed = {}
        self._scanning = scanning
        self._started_ns = now_ns
        try:
            self._actuator.start(wanted, create=scanning)
        except OSError as error:
            self._scan.request()
            self._log_problem(f"no process for the cookies: {error.strerror}")

    def _all_tasks(self) -> Callable[[], Wanted]:
        mount, version = self._layout.mount, self._layout.version
        ordered = [entry for entry in self._groups.values() if entry[1] in self._orders]

        def wanted() -> Wanted:
            tasks = chain(((tid, "") for tid in all_tasks()), members(mount, version, ordered))
            return dict(tasks)

        return wanted

    def _moved_tasks(self, moves: Iterable[Move]) -> Callable[[], Wanted]:
        # The last move of a task is where it is.
        moved = [(move, self._group(move.cgroup)) for move in moves]
        mount, version = self._layout.mount, self._layout.version
        changed = [
            (at, group if group in self._orders else "") for at, group in self._changed.values()
        ]

        def wanted() -> Wanted:
            tasks = dict(members(mount, version, changed))
            for move, group in moved:
                for tid in (move.tid, *(threads(move.tgid) if move.whole else ())):
                    tasks[tid] = group
            return tasks

        return wanted

    def _group(self, cgroup: CgroupId | None) -> str:
        if cgroup is None or cgroup not in self._groups:
            return ""
        group = self._groups[cgroup][1]
        return group if group in self._orders else ""

    def _finish(self, now_ns: int) -> None:
        if self._actuator.busy and now_ns - self._started_ns > _TIMEOUT_NS:
            self._actuator.cancel()
            self._scan.request()
            self._log_problem("the helper for the cookies did not come back")
        report = self._actuator.poll()
        if report is None:
            return
        self._count(report)
        if report.problem:
            self._log_problem(f"cookies: {report.problem}")
        if not self._scanning:
            if report.uncarried:
                self._scan.request()
            return
        self.state = self.state._replace(carrying=report.carrying, foreign=report.foreign)
        if not report.problem:
            for cookie in set(self._actuator.registry.cookies) - set(report.cookies):
                self._actuator.registry.remove_cookie(cookie)

    def _count(self, report: JobReport) -> None:
        self.state = self.state._replace(
            helpers=self.state.helpers + 1,
            given=self.state.given + report.given,
            cleared=self.state.cleared + report.cleared,
            failed=self.state.failed + report.failed,
        )

    def _log_problem(self, problem: str) -> None:
        # Once per kind of trouble: it may come again with every helper.
        if problem != self._problem:
            self._problem = problem
            _log.warning("%s", problem)


class CoreScheduling:
    """The cookies of best-effort work and the measure that they are gated by.

    :param probe: tells who runs where; without it nothing is known of shared cores.
    """

    def __init__(
        self, layout: CgroupLayout, actuator: CoreCookie, probe: SchedProbe | None
    ) -> None:
        self._probe = probe
        self._actuator = actuator
        self._keeper = CookieReconciler(layout, actuator)
        self._meter: OverlapMeter | None = None
        self._overlap: float | None = None
        self._workloads: tuple[Workload, ...] = ()
        self._idle_partial: tuple[str, ...] = ()
        self.problem = actuator.unsupported_reason() or ""

    @property
    def targets(self) -> tuple[Target, ...]:
        """The groups that may get a cookie; none where there is no core scheduling."""
        return () if self.problem else self._keeper.targets

    @property
    def engaged(self) -> bool:
        """Whether some group is to carry a cookie now."""
        return bool(self._actuator.registry.groups)

    @property
    def state(self) -> CoreState:
        """What there is to tell of it now."""
        return self._keeper.state._replace(
            problem=self.problem, overlap_ratio=self._overlap, idle_partial=self._idle_partial
        )

    def reconfigure(self, settings: CoreSettings) -> None:
        """Measure from now on if *settings* want it, and only then."""
        wanted = settings.mode is CoreMode.AUTO and not self.problem
        siblings = core_siblings() if wanted else ()
        if siblings and self._meter is None and self._probe is not None:
            self._meter = OverlapMeter(self._probe.running, siblings, max_slots=MAX_SLOTS)
            self.set_workloads(self._workloads)
        elif not wanted:
            self._stop_measuring()

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Take the workloads that are here now; the sched probe must know them already."""
        self._workloads = tuple(workloads)
        self._idle_partial = partial_idle(self._workloads)
        self._keeper.set_workloads(self._workloads)
        if self._meter is None or self._probe is None:
            return
        by_class = {
            qos: self._probe.slots_of(w.cgroup for w in self._workloads if w.qos is qos)
            for qos in (QosClass.LS, QosClass.BE)
        }
        self._meter.set_workloads(by_class[QosClass.LS], by_class[QosClass.BE])

    def overlap(self, now_ns: int) -> float | None:
        """Return ``Snapshot.core_overlap_ratio``."""
        self._overlap = None if self._meter is None else self._meter.poll(now_ns)
        return self._overlap

    def reconcile(self, now_ns: int, moves: Moves | None) -> None:
        """Look after the cookies; only where knobs are written."""
        if not self.problem:
            self._keeper.reconcile(now_ns, moves)

    def close(self) -> None:
        """Stop measuring and end a helper that is at work."""
        self._stop_measuring()
        self._keeper.close()

    def _stop_measuring(self) -> None:
        if self._meter is not None:
            self._meter.close()
            self._meter = None
