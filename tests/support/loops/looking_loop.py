# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Closed loops whose ticks are left out as the agent leaves them out: by looks at the arrays."""

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from controller.agent.schedule import Schedule, Seen, reason_to_tick
from controller.core.decision import Outcome, Plan
from controller.core.indicators.measurement import BUCKETS
from controller.core.looks import Quiet, Strain, TickReason
from controller.core.model import QosClass, Snapshot, Workload
from controller.core.planner import Planner
from controller.core.settings import Settings
from controller.demo.simulated_node import SimulatedNode
from controller.probes.sched_look import WaitLook
from controller.probes.slots import Member, View
from tests.support.loops.closed_loop import TICK_NS, ClosedLoop

__all__ = ("Looker", "LookingLoop", "WokenLoop")

_STEP_NS = 10_000_000

_WORDS = ("oncpu_ns", "wait_total_ns", "wait_inflicted_ns", "waits", "throttled_ns", "wait_host_ns")


class Arrays:
    """The arrays of the sched probe for the services of *workloads*, filled from samples."""

    def __init__(self, workloads: tuple[Workload, ...]) -> None:
        services = [each for each in workloads if each.qos is QosClass.LS]
        self.view = View(tuple(Member(w.cgroup, n + 3, n) for n, w in enumerate(services)))
        slots, records = len(services) + 3, len(services)
        self.accounts = np.zeros((slots, 1, len(_WORDS)), np.int64)
        self.latencies = np.zeros((records, 1, BUCKETS), np.uint32)
        self.totals = np.zeros((slots, len(_WORDS)), np.int64)
        self.waits = np.zeros((records, BUCKETS), np.uint32)
        self.look = WaitLook(self.accounts, self.latencies, self.totals, self.waits)

    def count(self, snapshot: Snapshot) -> None:
        """Let the kernel's arrays have the counts of *snapshot*."""
        samples = {each.cgroup: each for each in snapshot.workloads}
        for member in self.view.members:
            sample = samples[member.cgroup]
            self.accounts[member.slot, 0] = [getattr(sample, word) or 0 for word in _WORDS]
            self.latencies[member.record, 0] = sample.runq_histogram or ()

    @property
    def long_waits(self) -> NDArray[np.float64]:
        """What the kernel compares, by limit: long waits, or by how much they are longer."""
        rows, weights = self.look._rows, self.look._weights
        waits = self.latencies.sum(axis=1)[rows.records]
        result: NDArray[np.float64] = (waits * weights).sum(axis=1)
        return result

    def end_tick(self, time_ns: int) -> None:
        """Take what was counted into the totals of a tick."""
        self.totals[:] = self.accounts.sum(axis=1)
        self.waits[:] = self.latencies.sum(axis=1)
        self.look.rebase(time_ns)


class Looker:
    """Looks at the arrays as the agent does; ``found`` counts the results, ``None``: no tick."""

    def __init__(self, workloads: tuple[Workload, ...]) -> None:
        self._arrays = Arrays(workloads)
        self._quiet = Quiet()
        self._tick_ns = self._look_ns = 0
        self._most: NDArray[np.float64] | None = None
        self.found: Counter[TickReason | None] = Counter()

    @property
    def strain(self) -> Strain:
        return self._quiet.strain

    @property
    def left_out_ns(self) -> int:
        return self._look_ns - self._tick_ns

    def arm(self) -> None:
        """Let the kernel tell once when a service has waited too much, unless one suffers."""
        self._most = None
        if self._quiet.reason is None:
            _, left = self._arrays.look.left(self._arrays.view, self._quiet)
            self._most = self._arrays.long_waits + left

    def is_told(self, snapshot: Snapshot) -> bool:
        """Return whether the kernel tells with the counts of *snapshot*."""
        self._arrays.count(snapshot)
        if self._most is None or not (self._arrays.long_waits > self._most).any():
            return False
        self._most = None
        return True

    def look(
        self,
        snapshot: Snapshot,
        period_ns: int,
        event: TickReason | None = None,
        *,
        woken: bool = False,
    ) -> TickReason | None:
        """Return why a tick is to be made of *snapshot*, if it is."""
        now_ns = snapshot.time_ns
        self._arrays.count(snapshot)
        seen = Seen(period_ns, now_ns - self._tick_ns, now_ns - self._look_ns, event, woken)
        exceeds = self._arrays.look.exceeds
        reason = reason_to_tick(self._quiet, seen, lambda q: exceeds(self._arrays.view, q))
        self.found[reason] += 1
        if reason is None and not woken:
            self._look_ns = now_ns
        return reason

    def end_tick(self, time_ns: int, quiet: Quiet) -> None:
        self._quiet = quiet
        self._tick_ns = self._look_ns = time_ns
        self._arrays.end_tick(time_ns)


class LookingLoop(ClosedLoop[SimulatedNode]):
    """A closed loop that looks in each period."""

    def __init__(self, node: SimulatedNode, settings: Settings | None = None) -> None:
        super().__init__(node, settings)
        self._looker = Looker(node.workloads)
        self._plan: Plan | None = None

    @property
    def found(self) -> Counter[TickReason | None]:
        return self._looker.found

    def left_out_ns(self) -> int:
        return self._looker.left_out_ns

    def step(self) -> Plan:
        """Make a tick if a look finds a reason; return the last plan."""
        now_ns = self.now_ns
        if self._looker.look(self.node.snapshot(now_ns), TICK_NS) is None:
            self.tick += 1
            assert self._plan is not None
            return self._plan
        self._plan = super().step()
        quiet = self.planner.quiet(self._plan, self.planner.settle(self.outcomes))
        self._looker.end_tick(now_ns, quiet)
        return self._plan


class WokenLoop:
    """A closed loop that looks when a tick is due and, if *wakes*, when the kernel tells.

    The node goes on in steps of 10 ms, so that onset and looks have different phases.
    """

    def __init__(self, node: SimulatedNode, settings: Settings, *, wakes: bool) -> None:
        self.node = node
        self.looker = Looker(node.workloads)
        self._planner = Planner(settings, node.workloads)
        self._wakes = wakes
        self._outcomes: tuple[Outcome, ...] = ()
        self._now_ns = 0
        self._schedule = Schedule(0)

    def run(self, until_ns: int) -> int | None:
        """Go on until *until_ns* or the first write; return the time of that."""
        while self._now_ns < until_ns:
            self._now_ns += _STEP_NS
            snapshot = self.node.snapshot(self._now_ns)
            due = self._now_ns >= self._schedule.due_ns
            if not due and not (self._wakes and self.looker.is_told(snapshot)):
                continue
            reason = self.looker.look(snapshot, self._planner.period_ns, woken=not due)
            if reason is not None:
                self._tick(snapshot)
            if due:
                if not self._schedule.was_woken:
                    self.looker.arm()
                self._schedule.due_ns = self._now_ns
                strain, period_ns = self.looker.strain, self._planner.period_ns
                self._schedule.pass_due(period_ns, TICK_NS, strain=strain)
            elif reason is not None:
                strain = self.looker.strain
                self._schedule.pass_woken(self._now_ns, TICK_NS, strain=strain)
            if self._outcomes:
                return self._now_ns
        return None

    def _tick(self, snapshot: Snapshot) -> None:
        snapshot = replace(snapshot, left_out_ns=self.looker.left_out_ns)
        plan = self._planner.step(snapshot, self._outcomes)
        self._outcomes = self.node.execute(plan.actions)
        in_force = self._planner.settle(self._outcomes)
        self.looker.end_tick(snapshot.time_ns, self._planner.quiet(plan, in_force))
