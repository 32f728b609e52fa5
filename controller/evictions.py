# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Who carries an eviction out: the API server for pods, the kernel for what the file names."""

from collections.abc import Iterable
import logging

from controller.cluster_evictions import PodEvictions
from controller.eviction_words import explain
from controller.model import EvictionAnswer, Plan, Workload
from controller.standalone import Standalone

__all__ = ("Evictions",)

_log = logging.getLogger(__name__)


class Evictions:
    """For the control thread. A pod is never touched here, however long its server is away.

    :param pods: ``None`` on a host without Kubernetes.
    """

    def __init__(self, standalone: Standalone, pods: PodEvictions | None) -> None:
        self._standalone = standalone
        self._pods = pods

    def follow(
        self, plan: Plan, workloads: Iterable[Workload], *, enforcing: bool, now_ns: int
    ) -> None:
        """Begin the eviction that *plan* holds, if any; go on with those under way."""
        eviction = plan.eviction
        if eviction is not None:
            _log.warning("%s: to be evicted: %s", eviction.name, explain(eviction, plan))
            if self._pods is None or not self._pods.ask(eviction, plan, enforcing=enforcing):
                path = next((w.path for w in workloads if w.cgroup == eviction.cgroup), "")
                self._standalone.ask(eviction, path, enforcing=enforcing, now_ns=now_ns)
        self._standalone.tick(now_ns)

    def answers(self) -> tuple[EvictionAnswer, ...]:
        """Return the answers that came since the last call."""
        pods = () if self._pods is None else self._pods.answers()
        return (*pods, *self._standalone.answers())

    def forget(self) -> None:
        """Begin anew: every knob was restored."""
        self._standalone.forget()
