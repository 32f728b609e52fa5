# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Rules of other systems, with their published constants, for scale.

They limit best-effort work as a whole, by the quota of its parent. All but ``NoControl`` use
sched-idle where the machine has it.
"""

from tests.plant.node import Node
from tests.plant.scenarios import OBJECTIVE_S

__all__ = ("RIVALS", "Koordinator", "NoControl", "Parties", "SchedIdle")

_LEAST_CPUS = 0.1


class NoControl:
    """Nothing is done; the cgroups have their weights."""

    def __init__(self, node: Node, resctrl: bool) -> None:
        self._node = node

    def step(self) -> float:
        """Return the time in s until the next step is due."""
        return 1.0


class SchedIdle(NoControl):
    """Best-effort work is sched-idle."""

    def __init__(self, node: Node, resctrl: bool) -> None:
        super().__init__(node, resctrl)
        if node.machine.idle_level:
            node.knobs.idle = [True] * len(node.jobs)


class Parties(SchedIdle):
    """One unit of one resource at a time, by the slack of the latency, taken back if it hurts.

    PARTIES (ASPLOS'19) with its slacks of 5 and 20 % and its lock of 10 s; tuned to a p99 that
    needs half a second: a step each 0.5 s, a CPU and a half at a time while the slack is negative.
    """

    def __init__(self, node: Node, resctrl: bool) -> None:
        super().__init__(node, resctrl)
        self._most = node.machine.cpus
        self._cpus = float(self._most)
        self._ways = node.machine.ways if resctrl else 0
        self._all_ways = self._ways
        self._takes_ways = False
        self._slack = 1.0
        self._gave = False
        self._locked_s = 0.0

    def step(self) -> float:
        """Take or give one unit."""
        node = self._node
        instant = node.queue.recent_p99(node.now_s, 0.5)
        window = node.queue.recent_p99(node.now_s, 1.0)
        if instant is None or window is None:
            return 0.5
        slacks = 1 - instant / OBJECTIVE_S, 1 - window / OBJECTIVE_S
        if max(slacks) < 0.05:
            if self._gave:
                self._locked_s = node.now_s + 10.0
            elif min(slacks) <= self._slack:  # it did not help: the next resource
                self._takes_ways = not self._takes_ways
            self._move(-1.5 if min(slacks) < 0 else -1.0)
            self._gave = False
        elif min(slacks) > 0.20 and node.now_s >= self._locked_s:
            self._move(1.0)
            self._gave = True
        self._slack = min(slacks)
        return 0.5

    def _move(self, by: float) -> None:
        knobs = self._node.knobs
        ways_can = self._ways > 2 if by < 0 else self._ways < self._all_ways
        if self._all_ways and ways_can and (self._takes_ways or by > 0):
            self._ways += 1 if by > 0 else -1
            knobs.region = self._ways / self._all_ways
            return
        self._cpus = min(float(self._most), max(_LEAST_CPUS, self._cpus + by))
        knobs.limit_cpus = self._cpus


class Koordinator(SchedIdle):
    """CPUSuppress: best-effort work gets what use leaves of a threshold, each second.

    It is lowered at once and raised by a tenth of the CPUs at most.
    """

    threshold = 0.65

    def __init__(self, node: Node, resctrl: bool) -> None:
        super().__init__(node, resctrl)
        self._before = 0.0
        self._limit = float(node.machine.cpus)

    def step(self) -> float:
        """Set the quota."""
        node, cpus = self._node, self._node.machine.cpus
        busy = float(node.counters.oncpu[0]) + node.counters.system_s
        used, self._before = busy - self._before, busy
        wanted = max(_LEAST_CPUS, self.threshold * cpus - used)
        self._limit = min(wanted, self._limit + 0.1 * cpus)
        node.knobs.limit_cpus = self._limit
        return 1.0


class Koordinator50(Koordinator):
    """CPUSuppress with a threshold of 50 %."""

    threshold = 0.5


RIVALS = {
    "none": NoControl,
    "sched-idle": SchedIdle,
    "parties": Parties,
    "koordinator-50": Koordinator50,
    "koordinator-65": Koordinator,
}
