# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A closed loop whose ticks are left out as the agent leaves them out: by looks at the arrays."""

from collections import Counter

import numpy as np

from controller.core.decision import Plan
from controller.core.indicators.histogram import BUCKETS
from controller.core.looks import Quiet, Seen, TickReason, reason_to_tick
from controller.core.model import QosClass, Snapshot, Workload
from controller.core.settings import Settings
from controller.demo.simulated_node import SimulatedNode
from controller.probes.sched_look import WaitLook
from controller.probes.slots import Member, View
from tests.support.loops.closed_loop import TICK_NS, ClosedLoop

__all__ = ("Looker", "LookingLoop")

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
        self.found: Counter[TickReason | None] = Counter()

    @property
    def left_out_ns(self) -> int:
        return self._look_ns - self._tick_ns

    def look(
        self, snapshot: Snapshot, period_ns: int, event: TickReason | None = None
    ) -> TickReason | None:
        """Return why a tick is to be made of *snapshot*, if it is."""
        now_ns = snapshot.time_ns
        self._arrays.count(snapshot)
        seen = Seen(period_ns, now_ns - self._tick_ns, now_ns - self._look_ns, event)
        exceeds = self._arrays.look.exceeds
        reason = reason_to_tick(self._quiet, seen, lambda q: exceeds(self._arrays.view, q))
        self.found[reason] += 1
        if reason is None:
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
