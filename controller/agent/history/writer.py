# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The thread that writes the history, so that no tick waits for it or for the disk."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
import logging
from pathlib import Path
import threading
import time

from controller.agent.history.files import HistoryFiles, Tick
from controller.config.sections.agent import HistoryConfig
from controller.core.decision import Outcome, Plan
from controller.core.in_force import InForce
from controller.core.model import Snapshot, Workload
from controller.core.settings import Settings
from controller.core.units import NS_PER_SEC
from controller.page.hours import Hours
from controller.telemetry.report import HistoryState

__all__ = ("History",)

_log = logging.getLogger(__name__)

_PERIOD_NS = 1 * NS_PER_SEC
# Ticks that wait while the disk does not answer, five minutes' worth.
_MAX_TICKS = 1500


class History:
    """Takes the ticks of the control thread and writes them, in a thread, into *data_dir*."""

    def __init__(self, data_dir: Path, config: HistoryConfig) -> None:
        self._files = HistoryFiles(data_dir, config, _wall_ns)
        self._condition = threading.Condition()
        self._ticks: deque[Tick] = deque()
        self._latest: Snapshot | None = None
        self._woken_ns = self._lost_ticks = 0
        self._anew = self._due = self._closing = False
        self._problem = ""
        self._cpu_s = 0.0
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    @property
    def hours(self) -> Hours:
        """The last hours, for any thread."""
        return self._files.hours

    @property
    def state(self) -> HistoryState:
        """The present state, for any thread."""
        return HistoryState(
            enabled=True,
            problem=self._problem or self._files.problem,
            lost_moments=self._files.moments.lost + self._lost_ticks,
            lost_snapshots=self._files.snapshots.lost,
            cpu_s=self._cpu_s,
            cut_cpu_s=self._files.cut_cpu_s,
        )

    def restart(self) -> None:
        """Every knob was restored, and the next tick is that of a new planner."""
        self._anew = True

    def take(
        self,
        snapshot: Snapshot,
        plan: Plan,
        outcomes: Sequence[Outcome],
        in_force: InForce,
        workloads: tuple[Workload, ...],
        settings: Settings,
    ) -> None:
        """Take a tick; *outcomes* are those of the actions of *plan*, none in observe mode.

        *in_force* is the record after them.
        """
        # The samples of the latest tick are enough, because counters are cumulative.
        slim = replace(snapshot, workloads=(), blame=(), links=(), services=())
        tick = Tick(slim, plan, outcomes, in_force, workloads, settings, self._anew)
        with self._condition:
            if self._problem or len(self._ticks) >= _MAX_TICKS:
                self._lost_ticks += 1
                return
            self._anew = False
            self._ticks.append(tick)
            self._latest = snapshot
            if snapshot.time_ns - self._woken_ns >= _PERIOD_NS:
                self._woken_ns = snapshot.time_ns
                self._due = True
                self._condition.notify_all()

    def close(self, within_s: float = 2.0) -> None:
        """Write what waits, for at most *within_s* seconds, and end the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join(within_s)
        if self._thread.is_alive():
            _log.warning("the last seconds of the history were not written within %g s", within_s)

    def _run(self) -> None:
        try:
            self._files.recall(time.monotonic_ns())
            while not self._write():
                self._cpu_s = time.thread_time()
        except Exception:  # the control loop does not depend on the history
            _log.exception("the history ends, the agent works without it")
            self._problem = "an error in the agent, see its log"

    def _write(self) -> bool:
        """Wait for a period of ticks and write them; return whether the history is closed."""
        with self._condition:
            self._condition.wait_for(lambda: self._closing or self._due)
            self._due = False
            ticks, self._ticks = self._ticks, deque()
            latest, self._latest = self._latest, None
            closing = self._closing
        for tick in ticks:
            self._files.add(tick)
        if closing:
            self._files.close(latest, time.monotonic_ns())
        elif latest is not None:
            self._files.write(latest)
        return closing


def _wall_ns(time_ns: int) -> int:
    return time.time_ns() - time.monotonic_ns() + time_ns
