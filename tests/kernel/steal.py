# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CPU time of tasks as the probes count it and as the kernel does, which differ by the steal time.

The kernel takes the time that the hypervisor gave to other guests off a task's run time
(``update_rq_clock_task`` in kernel/sched/core.c); the probes count from switch to switch.
"""

import os
import time

from controller.core.units import NS_PER_SEC
from controller.probes.steal import StealMeter

__all__ = ("Steal",)

_TICK_NS = NS_PER_SEC // os.sysconf("SC_CLK_TCK")


class Steal:
    """The steal time of the machine since the object was made."""

    def __init__(self) -> None:
        self._before_ns, self._made_ns = StealMeter().poll(0) or 0, time.monotonic_ns()

    def taken_ns(self) -> int:
        """Return an upper bound of the steal time: it is counted in ticks, so one may be due."""
        taken_ns = (StealMeter().poll(0) or 0) - self._before_ns
        return taken_ns + _TICK_NS if taken_ns else 0

    def left_ratio(self) -> float:
        """Return the part of the time since the object was made in which no CPU was stolen.

        A lower bound: as if the hypervisor had never taken two CPUs at once.
        """
        return max(0.0, 1 - self.taken_ns() / (time.monotonic_ns() - self._made_ns))

    def assert_equal(
        self, counted_ns: int | None, ran_ns: int, *, rel: float, spare_ns: int = 0
    ) -> None:
        """Assert that *counted_ns* of a probe is *ran_ns* of the kernel and at most the steal time.

        Both may differ by the share *rel* and by *spare_ns*.
        """
        taken_ns = self.taken_ns()
        assert counted_ns is not None
        print(
            f"{counted_ns / ran_ns - 1:+.2%} of {ran_ns / 1e9:.3f} s, stolen {taken_ns / 1e9:.3f}"
        )
        assert (1 - rel) * ran_ns - spare_ns <= counted_ns
        assert counted_ns <= (1 + rel) * ran_ns + spare_ns + taken_ns
