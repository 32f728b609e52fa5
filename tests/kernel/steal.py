# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CPU time of tasks as the probes count it and as the kernel does, which differ by the steal time.

The kernel takes the time that the hypervisor gave to other guests off a task's run time
(``update_rq_clock_task`` in kernel/sched/core.c); the probes count from switch to switch. For tests
that are marked ``timed`` only.
"""

from collections.abc import Iterable
import os
from pathlib import Path
import time

from controller.core.units import NS_PER_SEC
from controller.probes.sched import SchedProbe
from controller.probes.steal import StealMeter
from tests.kernel.groups import Groups
from tests.kernel.loads import Running

__all__ = ("Steal", "assert_agree")

_TICK_NS = NS_PER_SEC // os.sysconf("SC_CLK_TCK")
LONGEST_SLICE_NS = 4_000_000


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


def assert_agree(
    groups: Groups, probe: SchedProbe, running: Running, cgroups: Iterable[Path]
) -> None:
    """Let *running* work; assert that probe and kernel agree within one percent."""
    cgroups = tuple(cgroups)
    steal = Steal()
    before, first = [running.schedstat(path) for path in cgroups], probe.poll()
    running.work()
    after, last = [running.schedstat(path) for path in cgroups], probe.poll()
    # Zero on a host without missed switches, see docs/ARCHITECTURE.md.
    lost_ns = (last.missed_switches - first.missed_switches) * LONGEST_SLICE_NS
    for path, then, now in zip(cgroups, before, after, strict=True):
        old, new = groups.sample(first, path), groups.sample(last, path)
        assert old.wait_total_ns is not None and new.wait_total_ns is not None
        assert old.oncpu_ns is not None and new.oncpu_ns is not None
        gained = now.since(then)
        seen_ns = new.wait_total_ns - old.wait_total_ns
        print(f"{path.name}: {seen_ns / gained.wait_ns - 1:+.4%} of {gained.wait_ns / 1e9:.3f} s")
        steal.assert_equal(new.oncpu_ns - old.oncpu_ns, gained.oncpu_ns, rel=0.01)
        assert 0.99 * gained.wait_ns - lost_ns <= seen_ns <= 1.01 * gained.wait_ns
