# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Core scheduling of best-effort work: the cookies of its tasks, and the measured core sharing.

A task inherits the cookie of its parent, so most tasks that are forked in a best-effort cgroup
carry the right cookie. A task that is moved into such a cgroup, or created in it from outside, does
not carry the cookie, and a task that is moved out keeps it. The reconciler repairs both.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
import logging
import time
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
from controller.host.facts import CgroupLayout, core_siblings
from controller.probes.cgroup_moves import Move, Moves
from controller.probes.sched import MAX_SLOTS, SchedProbe
from controller.probes.smt_overlap import OverlapMeter
from controller.reconcilers.task_scan import TaskScan
from controller.workloads.changes import diff_workloads
from controller.workloads.knob_placement import partial_idle

__all__ = (
    "CookieReconciler",
    "CoreScheduling",
    "CoreState",
)

_log = logging.getLogger(__name__)

_TIMEOUT_NS = 10 * NS_PER_SEC
# So long a tick waits for the cookies of tasks that are about to run, and wait for the tick.
_FIRST_COOKIES_S = 0.03
_POLL_S = 0.001
# With more pending moves than this, a scan of all tasks is cheaper.
_MAX_MOVES = 2000


class CoreState(NamedTuple):
    """State of core scheduling, and of sched-idle where it does not cover every service.

    ``problem`` is the reason why no cookies are used. ``carrying`` and ``foreign`` are the numbers
    of tasks with a cookie of the agent and with a cookie of another program at the last full scan,
    ``None`` before the first. Since the start, ``given``, ``cleared`` and ``failed`` count tasks,
    and ``helpers`` counts helper processes. ``overlap_ratio`` is ``Snapshot.core_overlap_ratio``.
    ``idle_partial`` are the cgroups with cpu.idle that do not yield to every service.
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
    """Starts helper processes that set and clear the cookies of tasks.

    :param layout: the hierarchy with the cgroups of the workloads.
    :param actuator: holds the groups that are to carry a cookie, and runs the helpers.
    """

    def __init__(self, layout: CgroupLayout, actuator: CoreCookie) -> None:
        self._layout = layout
        self._actuator = actuator
        self._workloads: tuple[Workload, ...] = ()
        # The core group of every best-effort cgroup.
        self._groups: dict[CgroupId, tuple[Target, str]] = {}
        self._orders: frozenset[str] = frozenset()
        self._scan = TaskScan(_MAX_MOVES)
        # Cgroups that were added, have another group, or are best-effort no more (group "").
        self._changed: dict[CgroupId, tuple[Target, str]] = {}
        self._started_ns = 0
        self._scanning = False
        self._problem = ""
        self.state = CoreState()

    @property
    def targets(self) -> tuple[Target, ...]:
        """The core groups of the present best-effort workloads."""
        names = dict.fromkeys(group for _, group in self._groups.values())
        return tuple(map(core_group, names))

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Set the present workloads; the cookies of the best-effort ones are reconciled."""
        before, self._workloads = self._workloads, tuple(workloads)
        change = (
            diff_workloads(before, self._workloads)
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

    def reconcile(self, now_ns: int, moves: Moves | None, first_moves: Sequence[Move] = ()) -> None:
        """Start a helper if a scan is due or tasks were moved; its report is read in a later tick.

        :param moves: the moves since the last tick, ``None`` without a move probe.
        :param first_moves: tasks that are about to run in the cgroup of a workload. Their cookies
            are waited for, if no other helper is running.
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
        self._scan.moves.extend(first_moves)
        if self._actuator.busy:
            return
        if any(self._group(each.cgroup) for each in first_moves):
            self._start_helper(self._moved_tasks(self._scan.take_moves()), now_ns, scanning=False)
            self._wait(now_ns)
            return
        # A busy container runtime must not keep the agent forking: the rest is for all other moves.
        if self._scan.resting(now_ns):
            return
        if self._scan.due(now_ns):
            self._scan.begin(now_ns)
            self._start_helper(self._all_tasks(), now_ns, scanning=True)
        elif self._scan.moves or self._changed:
            self._scan.rest(now_ns)
            self._start_helper(self._moved_tasks(self._scan.take_moves()), now_ns, scanning=False)

    def close(self) -> None:
        """Kill a running helper."""
        self._actuator.cancel()

    def _wait(self, now_ns: int) -> None:
        deadline_s = time.monotonic() + _FIRST_COOKIES_S
        while self._actuator.busy and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
            self._finish(now_ns)

    def _start_helper(self, wanted: Callable[[], Wanted], now_ns: int, *, scanning: bool) -> None:
        self._changed = {}
        self._scanning = scanning
        self._started_ns = now_ns
        try:
            self._actuator.start(wanted, create=scanning)
        except OSError as error:
            self._scan.request()
            self._log_problem(f"cannot fork a helper for cookies: {error.strerror}")

    def _all_tasks(self) -> Callable[[], Wanted]:
        mount, version = self._layout.mount, self._layout.version
        ordered = [entry for entry in self._groups.values() if entry[1] in self._orders]

        def wanted() -> Wanted:
            tasks = chain(((tid, "") for tid in all_tasks()), members(mount, version, ordered))
            return dict(tasks)

        return wanted

    def _moved_tasks(self, moves: Iterable[Move]) -> Callable[[], Wanted]:
        # Of several moves of a task the last one counts: it has the present cgroup.
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
            seconds = _TIMEOUT_NS // NS_PER_SEC
            self._log_problem(f"the helper for cookies did not end within {seconds} s: killed")
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
        # Logged when the text changes: the same problem may recur with every helper.
        if problem != self._problem:
            self._problem = problem
            _log.warning("%s", problem)


class CoreScheduling:
    """The cookies of best-effort work, and the measurement that decides whether they are used.

    :param probe: has the slot that runs on each CPU; without it core sharing is not measured.
    """

    def __init__(
        self, layout: CgroupLayout, actuator: CoreCookie, probe: SchedProbe | None
    ) -> None:
        self._probe = probe
        self._actuator = actuator
        self._reconciler = CookieReconciler(layout, actuator)
        self._meter: OverlapMeter | None = None
        self._siblings: tuple[tuple[int, ...], ...] = ()
        self._overlap: float | None = None
        self._workloads: tuple[Workload, ...] = ()
        self._idle_partial: tuple[str, ...] = ()
        self.problem = actuator.unsupported_reason() or ""

    @property
    def targets(self) -> tuple[Target, ...]:
        """The core groups that may get a cookie; none where the host has no core scheduling."""
        return () if self.problem else self._reconciler.targets

    def allows(self, settings: CoreSettings) -> bool:
        """Return whether *settings* may give a group a cookie on this host."""
        return settings.mode is not CoreMode.OFF and not self.problem

    @property
    def engaged(self) -> bool:
        """Whether at least one group is to carry a cookie."""
        return bool(self._actuator.registry.groups)

    @property
    def state(self) -> CoreState:
        """The present state, for reports."""
        return self._reconciler.state._replace(
            problem=self.problem, overlap_ratio=self._overlap, idle_partial=self._idle_partial
        )

    def reconfigure(self, settings: CoreSettings) -> None:
        """Start or stop measuring, as *settings* and the online CPUs demand."""
        wanted = settings.mode is CoreMode.AUTO and not self.problem
        siblings = core_siblings() if wanted else ()
        if siblings != self._siblings:
            self._stop_measuring()
            self._siblings = siblings
        if siblings and self._meter is None and self._probe is not None:
            self._meter = OverlapMeter(self._probe.running, siblings, max_slots=MAX_SLOTS)
            self.set_workloads(self._workloads)

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Set the present workloads, after the sched probe has assigned their slots."""
        before, self._workloads = self._workloads, tuple(workloads)
        if before is not self._workloads:
            self._idle_partial = partial_idle(self._workloads)
        self._reconciler.set_workloads(self._workloads)
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

    def reconcile(self, now_ns: int, moves: Moves | None, first_moves: Sequence[Move]) -> None:
        """Reconcile the cookies; to be called in enforce mode only.

        See ``CookieReconciler.reconcile``.
        """
        if not self.problem:
            self._reconciler.reconcile(now_ns, moves, first_moves)

    def close(self) -> None:
        """Stop measuring and kill a running helper."""
        self._stop_measuring()
        self._reconciler.close()

    def _stop_measuring(self) -> None:
        if self._meter is not None:
            self._meter.close()
            self._meter = None
