# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Who carries an eviction out: the API server for pods, the kernel for what the file names."""

from collections.abc import Iterable
import logging
from pathlib import Path
import time

from controller.cluster_evictions import PodEvictions
from controller.control.eviction import EvictionPast
from controller.decision import Plan
from controller.eviction_words import explain
from controller.model import EvictionAnswer, EvictionResult, Workload
from controller.past_evictions import read_past, write_past
from controller.standalone import Standalone

__all__ = ("Evictions",)

_log = logging.getLogger(__name__)


class Evictions:
    """For the control thread. A pod is never touched here, however long its server is away.

    ``past`` is what a planner has to know of those before; it is kept below *state_dir*.

    :param pods: ``None`` on a host without Kubernetes.
    """

    def __init__(self, standalone: Standalone, pods: PodEvictions | None, state_dir: Path) -> None:
        self._standalone = standalone
        self._pods = pods
        self._state_dir = state_dir
        self.past = read_past(state_dir, time.monotonic_ns())
        self._written = EvictionPast()  # or nothing
        self._problem = ""
        self._held: list[EvictionAnswer] = []

    def follow(
        self,
        plan: Plan,
        past: EvictionPast,
        workloads: Iterable[Workload],
        *,
        enforcing: bool,
        now_ns: int,
    ) -> None:
        """Begin the eviction that *plan* holds, if any; go on with those under way.

        *past* is what there is to know of evictions with this one.
        """
        self._keep(past)
        eviction = plan.eviction
        if eviction is not None and self._problem:
            answer = EvictionResult.HELD, f"it cannot be written down: {self._problem}"
            self._held.append(EvictionAnswer(eviction.cgroup, eviction.channel, *answer))
        elif eviction is not None:
            _log.warning("%s: to be evicted: %s", eviction.name, explain(eviction, plan))
            if self._pods is None or not self._pods.ask(eviction, plan, enforcing=enforcing):
                path = next((w.path for w in workloads if w.cgroup == eviction.cgroup), "")
                self._standalone.ask(eviction, path, enforcing=enforcing, now_ns=now_ns)
        self._standalone.tick(now_ns)

    def answers(self) -> tuple[EvictionAnswer, ...]:
        """Return the answers that came since the last call."""
        pods = () if self._pods is None else self._pods.answers()
        held, self._held = self._held, []
        return (*held, *pods, *self._standalone.answers())

    def forget(self) -> None:
        """Begin anew: every knob was restored."""
        self._standalone.forget()

    def _keep(self, past: EvictionPast) -> None:
        # Before anybody is asked to go: an agent that dies of it must not begin anew.
        self.past = past
        if past == self._written:
            return
        try:
            write_past(self._state_dir, past)
        except OSError as error:
            if str(error) != self._problem:
                _log.error("%s: nobody is evicted until that works", error)
            self._problem = str(error)
        else:
            self._written, self._problem = past, ""
