# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the processes of best-effort work first in the kernel's order when memory runs out.

kubelet gives an oom_score_adj of 1000 to BestEffort pods only. Best-effort pods of another class by
a label, and cgroups of a plain host, have what their runtime or their parent gave them. A child
inherits the value. Other processes, such as those of a container that starts again, are found by
looking at cgroups in turn, a bounded number of processes in each tick. A new process uses a CPU, so
cgroups that used none are left out, but in one round in ten minutes: a process may have been moved.
"""

from collections.abc import Collection, Iterable
import logging
from typing import NamedTuple

from actuators.base import GoneError, RefusedError
from actuators.executor import Executor
from actuators.journal import JournalError
from actuators.oom_order import HIGHEST, OOM, OWN, OomOrder
from controller.core.decision import Action, Failure
from controller.core.model import (
    CgroupId,
    Knob,
    KnobValue,
    QosClass,
    Target,
    TargetKind,
    Workload,
)
from controller.core.units import NS_PER_SEC

__all__ = ("OomReconciler", "OomState")

_log = logging.getLogger(__name__)

_ROUND_NS = 5 * NS_PER_SEC
_WHOLE_ROUND_NS = 600 * NS_PER_SEC
# New processes and cgroups per tick, or per half a second where ticks were left out: as many as the
# knob poller reads. A look at a cgroup of two containers took 0.3 to 0.5 ms of CPU time on a busy
# virtual machine, so a round over more than a hundred takes proportionally longer than 5 s.
_PROCESSES = 64
_CGROUPS = 4
_PART_NS = NS_PER_SEC // 2
_MOST_PARTS = 4


class OomState(NamedTuple):
    """``workloads`` have raised processes now; the others count processes since the start."""

    workloads: int = 0
    raised: int = 0
    failed: int = 0


class OomReconciler:
    """Raises the oom_score_adj of the processes of best-effort workloads, through *executor*."""

    def __init__(self, executor: Executor, actuator: OomOrder) -> None:
        self._executor = executor
        self._actuator = actuator
        self._on = False
        self._wanted: dict[Target, None] = {}
        self._held: dict[Target, None] = {}
        # The next one is the last; new ones are put there. Those with more processes than one look
        # takes come again when all others had their turn.
        self._queue: list[Target] = []
        self._again: list[Target] = []
        self._due_ns = self._whole_due_ns = self._last_ns = 0
        # The cgroups that used a CPU since the last round began.
        self._ran: set[int] = set()
        self._problem = ""

    @property
    def state(self) -> OomState:
        """The present state, for reports."""
        return OomState(len(self._held), self._actuator.raised, self._actuator.failed)

    def reconfigure(self, on: bool) -> None:
        """Raise processes from now on, or give back what they had."""
        if on is not self._on:
            self._whole_due_ns = 0
        self._on = on

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Set the present workloads; the processes of the best-effort ones are raised."""
        before = self._wanted
        self._wanted = {
            Target(TargetKind.CGROUP, OOM, each.cgroup.id, each.path): None
            for each in workloads
            if each.qos is QosClass.BE
        }
        self._queue = [each for each in self._queue if each in self._wanted]
        self._queue += [each for each in self._wanted if each not in before]
        self._again = [each for each in self._again if each in self._wanted]
        present = {each.id for each in (*self._wanted, *self._held)}
        for target in before:
            if target.id not in present:
                self._actuator.forget(target)

    def reset(self) -> None:
        """Start over after everything of the agent was undone."""
        for target in (*self._held, *self._wanted):
            self._actuator.forget(target)
        self._held.clear()
        self._queue, self._again = list(self._wanted), []
        self._due_ns = 0

    def reconcile(self, now_ns: int, ran: Collection[CgroupId] | None) -> None:
        """Look at some processes and raise those that are new; in enforce mode only.

        :param ran: the workloads that used a CPU since the last call; ``None``: any of them may.
        """
        wanted = self._wanted if self._on else {}
        for target in [each for each in self._held if each not in wanted]:
            if not self._request(target, OWN, "no best-effort work that is ordered", now_ns):
                del self._held[target]
        if not self._on:
            return
        if ran is None:
            self._whole_due_ns = 0
        else:
            self._ran.update(each.id for each in ran)
        if not self._queue and now_ns >= self._due_ns:
            self._begin_round(now_ns)
        if not self._queue:
            self._queue, self._again = self._again, []
        parts = min(_MOST_PARTS, max(1, (now_ns - self._last_ns) // _PART_NS))
        self._last_ns = now_ns
        before, most = self._actuator.raised, parts * _PROCESSES
        for _ in range(min(parts * _CGROUPS, len(self._queue))):
            if most <= 0:
                break
            most -= self._look(self._queue.pop(), most, now_ns)
        if raised := self._actuator.raised - before:
            _log.info("%d processes of best-effort work have an oom_score_adj of 1000 now", raised)

    def _begin_round(self, now_ns: int) -> None:
        self._due_ns = now_ns + _ROUND_NS
        is_whole = now_ns >= self._whole_due_ns
        if is_whole:
            self._whole_due_ns = now_ns + _WHOLE_ROUND_NS
        again, self._again = self._again, []
        wanted = [each for each in reversed(self._wanted) if is_whole or each.id in self._ran]
        self._queue = again + [each for each in wanted if each not in again]
        self._ran.clear()

    def _look(self, target: Target, most: int, now_ns: int) -> int:
        try:
            found = self._actuator.look(target, most)
            if self._actuator.lacks(target):
                if self._actuator.holds(target):
                    self._actuator.raise_seen(target)
                else:
                    self._request(target, HIGHEST, "best-effort work goes first", now_ns)
            if self._actuator.holds(target):
                self._held[target] = None
        except GoneError:
            return 0  # the next scan finds no such workload, and its record is dropped
        except (RefusedError, JournalError) as error:
            self._fail(target, str(error))
            return 0
        if found == most:
            self._again.append(target)  # the rest of it
        return found

    def _request(self, target: Target, value: KnobValue, reason: str, now_ns: int) -> bool:
        """Write *value*; return whether the cgroup is held then."""
        previous = OWN if value == HIGHEST else HIGHEST
        action = Action(
            target=target, knob=Knob.OOM_SCORE_ADJ, previous=previous, value=value, reason=reason
        )
        (outcome,) = self._executor.execute([action], now_ns=now_ns)
        if outcome.failure is Failure.REFUSED:
            self._fail(target, outcome.message)
        return outcome.applied == HIGHEST

    def _fail(self, target: Target, problem: str) -> None:
        self._ran.add(target.id)  # the next round tries it again
        self._log_problem(problem)

    def _log_problem(self, problem: str) -> None:
        # Logged when the text changes: the same problem may recur in every round.
        if problem != self._problem:
            self._problem = problem
            _log.warning("oom_score_adj: %s", problem)
