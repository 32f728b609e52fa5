# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the core-scheduling cookies of tasks in line with the cgroups that they are in.

A child inherits its parent's cookie, so most of what is born into a best-effort cgroup has the
right one. What is moved there, or made there from outside, has not; what leaves keeps ours.
"""

from collections.abc import Callable, Iterable
from itertools import chain
import logging

from actuators.core_cookie import BEST_EFFORT, CoreCookie, core_group
from actuators.core_errand import Report, Wanted
from actuators.tasks import all_tasks, members, threads
from controller.comings import comings
from controller.host import CgroupLayout
from controller.model import CgroupId, QosClass, Target, TargetKind, Workload
from controller.probes.members import Move, Moves
from controller.report import CoreState
from controller.units import NS_PER_SEC

__all__ = ("CookieKeeper",)

_log = logging.getLogger(__name__)

# A look at every task of the host: seldom where moves are told, often where they are not.
_SCAN_TOLD_NS = 60 * NS_PER_SEC
_SCAN_UNTOLD_NS = 5 * NS_PER_SEC
# Between two helpers, so that a busy container runtime cannot keep us forking.
_REST_NS = NS_PER_SEC
_TIMEOUT_NS = 10 * NS_PER_SEC
# With more moves than this it is cheaper to look at everybody.
_MAX_MOVED = 2000


class CookieKeeper:
    """Sends helpers when tasks must be given a cookie or relieved of it.

    :param actuator: whose orders are to be kept; it runs the helpers.
    """

    def __init__(self, layout: CgroupLayout, actuator: CoreCookie) -> None:
        self._layout = layout
        self._actuator = actuator
        self._followed: tuple[Workload, ...] = ()
        self._groups: dict[CgroupId, tuple[Target, str]] = {}  # of the best-effort ones
        self._orders: frozenset[str] = frozenset()
        self._moved: list[Move] = []
        # New here, of another group, or no longer best-effort.
        self._changed: dict[CgroupId, tuple[Target, str]] = {}
        self._scan_due_ns = 0
        self._rest_until_ns = 0
        self._started_ns = 0
        self._scanning = False
        self._problem = ""
        self.state = CoreState()

    @property
    def targets(self) -> tuple[Target, ...]:
        """The groups of those best-effort workloads that are here."""
        names = dict.fromkeys(group for _, group in self._groups.values())
        return tuple(map(core_group, names))

    def follow(self, workloads: Iterable[Workload]) -> None:
        """Keep the best-effort ones of *workloads* from now on."""
        before, self._followed = self._followed, tuple(workloads)
        change = comings(before, self._followed).of(QosClass.BE).by("cgroup", "path", "core_group")
        for each in change.gone:
            target, _ = self._groups.pop(each.cgroup)
            self._changed[each.cgroup] = target, ""
        for each in change.came:
            target = Target(TargetKind.CGROUP, *each.cgroup, each.path)
            entry = target, each.core_group or BEST_EFFORT
            self._groups[each.cgroup] = self._changed[each.cgroup] = entry

    def tick(self, now_ns: int, moves: Moves | None) -> None:
        """Look after what happened since the last tick; a helper's work shows in later ones.

        :param moves: as told by the members probe, ``None`` without one.
        """
        self._finish(now_ns)
        orders = self._actuator.book.groups
        if orders != self._orders:
            self._orders = orders
            self._scan_due_ns = 0
        if not orders:
            self._moved, self._changed = [], {}
            return
        if moves is not None:
            self._moved.extend(moves.moves)
            if not moves.complete or len(self._moved) > _MAX_MOVED:
                self._scan_due_ns = 0
        if self._actuator.busy or now_ns < self._rest_until_ns:
            return
        if now_ns >= self._scan_due_ns:
            every_ns = _SCAN_UNTOLD_NS if moves is None else _SCAN_TOLD_NS
            self._scan_due_ns = now_ns + every_ns
            self._send(self._everybody(), now_ns, scanning=True)
        elif self._moved or self._changed:
            self._send(self._those_who_moved(), now_ns, scanning=False)

    def close(self) -> None:
        """End a helper that is at work."""
        self._actuator.cancel()

    def _send(self, wanted: Callable[[], Wanted], now_ns: int, *, scanning: bool) -> None:
        self._moved, self._changed = [], {}
        self._scanning = scanning
        self._started_ns = now_ns
        self._rest_until_ns = now_ns + _REST_NS
        try:
            self._actuator.start(wanted, create=scanning)
        except OSError as error:
            self._scan_due_ns = 0
            self._complain(f"no process for the cookies: {error.strerror}")

    def _everybody(self) -> Callable[[], Wanted]:
        mount, version = self._layout.mount, self._layout.version
        ordered = [entry for entry in self._groups.values() if entry[1] in self._orders]

        def wanted() -> Wanted:
            tasks = chain(((tid, "") for tid in all_tasks()), members(mount, version, ordered))
            return dict(tasks)

        return wanted

    def _those_who_moved(self) -> Callable[[], Wanted]:
        # The last move of a task is where it is.
        moved = [(move, self._group(move.cgroup)) for move in self._moved]
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
            self._scan_due_ns = 0
            self._complain("the helper for the cookies did not come back")
        report = self._actuator.poll()
        if report is None:
            return
        self._count(report)
        if report.problem:
            self._complain(f"cookies: {report.problem}")
        if not self._scanning:
            if report.nobody_carries:
                self._scan_due_ns = 0
            return
        self.state = self.state._replace(carrying=report.carrying, foreign=report.foreign)
        if not report.problem:
            for cookie in set(self._actuator.book.cookies) - set(report.cookies):
                self._actuator.book.forget(cookie)

    def _count(self, report: Report) -> None:
        self.state = self.state._replace(
            helpers=self.state.helpers + 1,
            given=self.state.given + report.given,
            cleared=self.state.cleared + report.cleared,
            failed=self.state.failed + report.failed,
        )

    def _complain(self, problem: str) -> None:
        # Once per kind of trouble: it may come again with every helper.
        if problem != self._problem:
            self._problem = problem
            _log.warning("%s", problem)
