# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Evictions through the API server, which asks the disruption budgets; nobody is ever deleted.

The node is marked before a pod is asked to go, because its controller makes the next one as soon
as it is. Called in the worker's thread: it waits for the network.

Evictions of pods as the control thread sees them: asked for now, answered some ticks later.

With every answer goes an Event at the pod that says which service suffers, by how much, and
what the pod does to it.
"""

from collections import deque
from collections.abc import Callable, Iterator
import time
from typing import Any, NamedTuple

from controller.config.sections.eviction import KubeEvictionConfig
from controller.core.control.explain import explain_eviction
from controller.core.decision import Eviction, Plan
from controller.core.model import CgroupId, EvictionAnswer, EvictionResult
from controller.core.units import NS_PER_SEC
from controller.kube.client.api import Api, segment
from controller.kube.client.errors import ApiError, ApiUnreachable
from controller.kube.client.worker import Worker
from controller.kube.events import Events, EventType, Regarding
from controller.kube.overload_taint import OverloadTaint
from controller.workloads.pods.pod import Pod

__all__ = (
    "EvictionClient",
    "PodEvictions",
    "Victim",
)

# The longest that a server may ask us to wait.
_LONGEST_WAIT_NS = 3600 * NS_PER_SEC
# We may not evict at all: nobody grants that within a minute.
_FORBIDDEN_NS = 300 * NS_PER_SEC
# What kubelet needs beyond a pod's own time to stop.
_SLACK_NS = 60 * NS_PER_SEC


class Victim(NamedTuple):
    """A pod that has to go: exactly that with this ``uid``, which may take ``grace_s`` to stop.

    From ``until_ns`` (CLOCK_MONOTONIC) on the evidence against it is too old.
    """

    eviction: Eviction
    namespace: str
    name: str
    uid: str
    grace_s: int
    until_ns: int


class _TooLateError(Exception):
    """What was decided is not to be done any more."""


class EvictionClient:
    """Asks the API server to evict pods of this node, one after the other."""

    def __init__(
        self, api: Api, mark: OverloadTaint, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._api = api
        self._mark = mark
        self._clock_ns = clock_ns
        self._closed = False

    def close(self) -> None:
        """Ask for no eviction any more; for any thread."""
        self._closed = True

    def evict(self, victim: Victim) -> EvictionAnswer:
        """Ask for the eviction of *victim* and return what the server says.

        Raises nothing: an API server that is away, or does not let us, is an answer as well.
        """
        was_marked = self._mark.present
        result, message, wait_ns = EvictionResult.HELD, "", 0
        try:
            self._check(victim)
            self._mark.set()
            result, message, wait_ns = self._ask(victim)
            on_its_way = result in (EvictionResult.EVICTED, EvictionResult.UNANSWERED)
            if not on_its_way and not was_marked:
                self._mark.remove()
        except _TooLateError as error:
            message = str(error)
        except (ApiError, ApiUnreachable) as error:
            # The mark: what cannot be taken back now is tried again by its keeper.
            message = message or f"the node's mark: {error}"
        return EvictionAnswer(
            cgroup=victim.eviction.cgroup,
            channel=victim.eviction.channel,
            result=result,
            message=message,
            wait_ns=min(wait_ns, _LONGEST_WAIT_NS),
        )

    def _check(self, victim: Victim) -> None:
        # A server that was slow for minutes must not get all that was decided meanwhile at once.
        if self._closed:
            raise _TooLateError("the agent ends")
        if self._clock_ns() >= victim.until_ns:
            raise _TooLateError("the API server took so long that the evidence is old")

    def _ask(self, victim: Victim) -> tuple[EvictionResult, str, int]:
        namespace, name = segment(victim.namespace), segment(victim.name)
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        try:
            self._check(victim)
            self._api.create(path, _eviction(victim))
        except _TooLateError as error:
            return EvictionResult.HELD, str(error), 0
        except ApiUnreachable as error:
            # Perhaps it came through and the answer did not.
            result = EvictionResult.UNANSWERED if error.asked else EvictionResult.HELD
            return result, str(error), 0
        except ApiError as error:
            return _refusal(error)
        grace_ns = victim.grace_s * NS_PER_SEC + _SLACK_NS
        return EvictionResult.EVICTED, "the API server took it", grace_ns


def _eviction(victim: Victim) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": victim.namespace, "name": victim.name},
        # Not its successor of the same name.
        "deleteOptions": {"preconditions": {"uid": victim.uid}},
    }


def _refusal(error: ApiError) -> tuple[EvictionResult, str, int]:
    """Tell a no to this pod from a no to everybody, and both from a pod that has left."""
    wait_ns = round((error.retry_after_s or 0.0) * NS_PER_SEC)
    message = str(error)
    if error.status in (404, 409):
        return EvictionResult.GONE, message, 0
    # 429 is also what a busy server says to any request; 500 that several budgets claim the pod
    # (pkg/registry/core/pod/storage/eviction.go).
    named = "DisruptionBudget" in error.causes or "PodDisruptionBudget" in error.message
    if named and error.status in (403, 429, 500):
        return EvictionResult.REFUSED, message, 0
    if error.status in (401, 403) and "cannot create resource" in error.message:
        return EvictionResult.HELD, message, _FORBIDDEN_NS
    if error.status in (400, 403, 422):
        return EvictionResult.REFUSED, message, 0  # an admission policy, perhaps
    return EvictionResult.HELD, message, wait_ns


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
        self._mark = OverloadTaint(api, node, config.mark, config.mark_ns / NS_PER_SEC)
        self._evictor = EvictionClient(api, self._mark, clock_ns)
        # Written by the worker's thread as well: the answer, whose it is, and the explanation.
        self._answers: deque[tuple[EvictionAnswer, Pod, str]] = deque()
        worker.submit_periodic(_TEND_S, self._mark.expire, _MARK_JOB)

    @property
    def marked_until_s(self) -> float | None:
        """When the node's mark ends, in seconds since the epoch; ``None``: there is none."""
        return self._mark.until_s or None

    @property
    def may_be_marked(self) -> bool:
        """Whether the node bears the mark, as far as is known."""
        return self._mark.present

    def request(self, eviction: Eviction, plan: Plan, *, enforcing: bool) -> bool:
        """Begin *eviction*, which *plan* holds; False if it is not one of a pod."""
        pod = self._pod_of(eviction.cgroup)
        if pod is None:
            return False
        about = pod, explain_eviction(eviction, plan)
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

    def remove_taint(self) -> None:
        """Evict nobody any more and take the node's mark back, in the worker's thread."""
        self._evictor.close()
        self._worker.submit(self._mark.remove, _MARK_JOB, first=True)
