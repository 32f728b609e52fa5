# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Evictions of pods as the control thread sees them: asked for now, answered some ticks later.

With every answer goes an Event at the pod that says which service suffers, by how much, and
what the pod does to it.
"""

from collections import deque
from collections.abc import Callable, Iterator
import time

from controller.configsections.kube_eviction import KubeEvictionConfig
from controller.decision import Eviction, Plan
from controller.eviction_words import explain
from controller.kube.api import Api
from controller.kube.events import Events, EventType, Regarding
from controller.kube.evictor import Evictor, Victim
from controller.kube.mark import Mark
from controller.kube.worker import Worker
from controller.model import CgroupId, EvictionAnswer, EvictionResult
from controller.units import NS_PER_SEC
from controller.workloads.kubernetes.pod import Pod

__all__ = ("PodEvictions",)

# What the worker calls these jobs where it tells of trouble.
_JOB = "eviction"
_MARK_JOB = "mark of the node"
_TEND_S = 10.0
# An eviction that could not be asked for within this time is held: much may have changed.
_FRESH_NS = 30 * NS_PER_SEC
# What is only reported is reported again after this time.
_REPORT_NS = 600 * NS_PER_SEC
_REASONS = {
    EvictionResult.EVICTED: "Evicted",
    EvictionResult.GONE: "EvictionTooLate",
    EvictionResult.REFUSED: "EvictionRefused",
    EvictionResult.UNANSWERED: "EvictionUnanswered",
    EvictionResult.HELD: "EvictionHeld",
    EvictionResult.REPORTED: "WouldEvict",
}


class PodEvictions:
    """Carries out evictions in the worker's thread; all methods are the control thread's.

    :param pod_of: the pod whose cgroup it is, if it is known.
    """

    def __init__(
        self,
        api: Api,
        worker: Worker,
        events: Events,
        config: KubeEvictionConfig,
        node: str,
        pod_of: Callable[[CgroupId], Pod | None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._clock_ns = clock_ns
        self._worker = worker
        self._events = events
        self._config = config
        self._pod_of = pod_of
        self._mark = Mark(api, node, config.mark, config.mark_ns / NS_PER_SEC)
        self._evictor = Evictor(api, self._mark, clock_ns)
        # Written by the worker's thread as well: the answer, whose it is, and the explanation.
        self._answers: deque[tuple[EvictionAnswer, Pod, str]] = deque()
        worker.every(_TEND_S, self._mark.tend, _MARK_JOB)

    @property
    def marked_until_s(self) -> float | None:
        """When the node's mark ends, in seconds since the epoch; ``None``: there is none."""
        return self._mark.until_s or None

    @property
    def may_be_marked(self) -> bool:
        """Whether the node bears the mark, as far as is known."""
        return self._mark.present

    def ask(self, eviction: Eviction, plan: Plan, *, enforcing: bool) -> bool:
        """Begin *eviction*, which *plan* holds; False if it is not one of a pod."""
        pod = self._pod_of(eviction.cgroup)
        if pod is None:
            return False
        about = pod, explain(eviction, plan)
        which = eviction.cgroup, eviction.channel
        if not (enforcing and self._config.enabled):
            why = "kubernetes.eviction is not enabled" if enforcing else "the agent only observes"
            answer = EvictionAnswer(*which, EvictionResult.REPORTED, why, _REPORT_NS)
            self._answers.append((answer, *about))
            return True
        until_ns = self._clock_ns() + _FRESH_NS
        victim = Victim(eviction, pod.namespace, pod.name, pod.uid, pod.grace_s, until_ns)

        def evict() -> None:
            self._answers.append((self._evictor.evict(victim), *about))

        if not self._worker.submit(evict, _JOB):
            why = "too much waits for the API server"
            self._answers.append((EvictionAnswer(*which, EvictionResult.HELD, why), *about))
        return True

    def answers(self) -> Iterator[EvictionAnswer]:
        """Yield the answers that came since the last call, and tell of each."""
        while self._answers:
            answer, pod, why = self._answers.popleft()
            regarding = Regarding("Pod", pod.namespace, pod.name, pod.uid)
            done = answer.result in (EvictionResult.EVICTED, EvictionResult.UNANSWERED)
            kind: EventType = "Warning" if done else "Normal"
            note = f"{answer.result}: {why} [{answer.message}]"
            self._events.emit(regarding, _REASONS[answer.result], note, kind)
            yield answer

    def take_back(self) -> None:
        """Evict nobody any more and take the node's mark back, in the worker's thread."""
        self._evictor.close()
        self._worker.submit(self._mark.take_back, _MARK_JOB, first=True)
