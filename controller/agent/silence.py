# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""An agent without a heartbeat: does it hang, or does it wait for a CPU?

An agent that hangs is to be killed. One that waits is not, because a new one would wait as well,
and would have to start first. For the guardian, so it imports the standard library only.
"""

import logging

from controller.host.threads import Threads, read_threads

__all__ = ("Silence",)

_log = logging.getLogger(__name__)

# For which part of the limit the threads are compared, and how many of them wait then.
_STEP_RATIO = 0.1
_WAITING = 0.5


class Silence:
    """The time since the last heartbeat of the agent *pid*.

    :param heartbeat_s: an agent that hangs may be silent for this long.
    :param starved_s: one that waits for a CPU may be silent for this long.
    """

    def __init__(self, pid: int, heartbeat_s: float, starved_s: float) -> None:
        self._pid, self._heartbeat_s, self._starved_s = pid, heartbeat_s, starved_s
        self._step_s = _STEP_RATIO * heartbeat_s
        self._began_s = 0.0
        self._threads: Threads | None = None
        self._told = False

    def begin(self, now_s: float) -> float:
        """Take a heartbeat; return when to call ``allow_s`` if no other comes."""
        self._began_s, self._threads, self._told = now_s, None, False
        return now_s + self._heartbeat_s - self._step_s

    def allow_s(self, now_s: float) -> float:
        """Return how much longer the agent may be silent. 0: it is to be killed."""
        before, self._threads = self._threads, read_threads(self._pid)
        if before is None:
            from controller.host.own_cgroup import raise_weight  # so that the guardian stays small

            raise_weight()
            return self._step_s
        silent_s = now_s - self._began_s
        waiting = self._threads.waited_ratio(before)
        if waiting >= _WAITING and silent_s < self._starved_s:
            if not self._told:
                _log.warning("the agent is silent for %.0fs: it waits for a CPU", silent_s)
            self._told = True
            return self._step_s
        _log.info("threads of the silent agent: %s", self._threads)
        return 0.0
