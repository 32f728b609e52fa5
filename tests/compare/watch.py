# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What explains an unusual block: the job's quota meanwhile, and the agent's counters."""

from collections.abc import Iterator
import contextlib
import math
import re
import threading

from tests.compare.policies import CpuKnobs

__all__ = ("QuotaSeen", "agent_ticks", "agent_writes", "watched")

# The agent and the rules write at most every 200 ms.
_INTERVAL_S = 0.05
# Reads of quota and period are not one: a change between them looks like a value of its own.
_SAME_RATIO = 1.001


class QuotaSeen:
    """How often a quota fell, and the lowest one in CPUs; a value counts when it is seen twice."""

    def __init__(self) -> None:
        self.squeezes = 0
        self.lowest_cpus = math.inf
        self._last = self._before = math.inf

    def update(self, cpus: float) -> None:
        """Take a reading; infinity: without a quota."""
        if cpus == self._last and cpus != self._before:
            self.squeezes += cpus * _SAME_RATIO < self._before
            self.lowest_cpus = min(self.lowest_cpus, cpus)
            self._before = cpus
        self._last = cpus


@contextlib.contextmanager
def watched(knobs: CpuKnobs) -> Iterator[QuotaSeen]:
    """Read the quota of *knobs* in a thread."""
    seen, stop = QuotaSeen(), threading.Event()

    def watch() -> None:
        while not stop.wait(_INTERVAL_S):
            seen.update(knobs.quota_cpus())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def agent_writes(metrics: str) -> int:
    """Return how many quotas the agent has written, from the text of its metrics."""
    applied = re.search(
        r'^sweetpoint_knob_writes_total\{knob="cpu.quota",result="applied"\} (\S+)$',
        metrics,
        re.MULTILINE,
    )
    return int(float(applied[1])) if applied else 0


def agent_ticks(metrics: str) -> dict[str, int]:
    """Return the agent's ticks by the state of its cpu channel, from the text of its metrics."""
    found = re.findall(
        r'^sweetpoint_channel_ticks_total\{channel="cpu",state="([^"]+)"\} (\S+)$',
        metrics,
        re.MULTILINE,
    )
    return {state: int(float(count)) for state, count in found}
