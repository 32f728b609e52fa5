# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Eviction of pods through the eviction API, which respects disruption budgets.

``EvictionClient`` makes the requests in the worker's thread. It sets the overload taint before the
eviction, because the pod's controller creates a replacement as soon as the pod is evicted. Pods are
never deleted directly.

``PodEvictions`` is for the control thread: an eviction is requested in one tick and answered some
ticks later. Each answer makes an Event at the pod with what the pod contributed, and, if the
service that suffers is of the same namespace, its name and by how much it suffers.
"""

from collections import deque
from collections.abc import Callable, Iterator
import time
from typing import Any, NamedTuple

from controller.config.sections.eviction import KubeEvictionConfig
from controller.core.decision import Eviction, Plan
from controller.core.model import CgroupId, EvictionAnswer, EvictionResult
from controller.core.units import NS_PER_SEC
from controller.kube.client.api import Api, segment
from controller.kube.client.errors import ApiError, ApiUnreachable
from controller.kube.client.worker import Worker
from controller.kube.events import Events, EventType, Regarding
from controller.kube.overload_taint import OverloadTaint
from controller.kube.reasons import Reason
from controller.page.words import explain_eviction
from controller.workloads.pods.pod import Pod

__all__ = (
    "EvictionClient",
    "PodEvictions",
    "Victim",
)

# Maximum of the waits that a server or a pod's grace period may cause.
_MAX_WAIT_NS = 3600 * NS_PER_SEC
# Wait after a missing permission to evict, which is not granted within a minute.
_FORBIDDEN_NS = 300 * NS_PER_SEC
# Time that kubelet needs beyond a pod's grace period.
_SLACK_NS = 60 * NS_PER_SEC

# Names of the worker's jobs in the log.
_JOB = "eviction"
_TAINT_JOB = "overload taint"
_EXPIRE_EVERY_S = 10.0
# An eviction that was not requested within this time is held, because its evidence is old.
_FRESH_NS = 30 * NS_PER_SEC
# A candidate that is only reported is reported again after this time.
_REPORT_NS = 600 * NS_PER_SEC
_REASONS = {
    EvictionResult.EVICTED: Reason.EVICTED,
    EvictionResult.GONE: Reason.TOO_LATE,
    EvictionResult.REFUSED: Reason.REFUSED,
    EvictionResult.UNANSWERED: Reason.UNANSWERED,
    EvictionResult.HELD: Reason.HELD,
    EvictionResult.REPORTED: Reason.WOULD_EVICT,
}


class Victim(NamedTuple):
    """The pod to evict, identified by its ``uid``; ``grace_s`` is its grace period in seconds.

    From ``until_ns`` (CLOCK_MONOTONIC) on the evidence against it is too old to evict it.
    """

    eviction: Eviction
    namespace: str
    name: str
    uid: str
    grace_s: int
    until_ns: int


class _TooLateError(Exception):
    """The eviction must not be requested any more."""


class EvictionClient:
    """Requests evictions of pods of this node, one after the other, in the worker's thread."""

    def __init__(
        self, api: Api, taint: OverloadTaint, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._api = api
        self._taint = taint
        self._clock_ns = clock_ns
        self._closed = False

    def close(self) -> None:
        """Request no further evictions; may be called by any thread."""
        self._closed = True

    def evict(self, victim: Victim) -> EvictionAnswer:
        """Request the eviction of *victim* and return the result.

        Raises nothing: an unreachable API server and a missing permission are results too.
        """
        was_present = self._taint.present
        result, message, wait_ns = EvictionResult.HELD, "", 0
        try:
            self._check(victim)
            self._taint.set()
            result, message, wait_ns = self._request(victim)
            if not result.leaves and not was_present:
                self._taint.remove()
        except _TooLateError as error:
            message = str(error)
        except (ApiError, ApiUnreachable) as error:
            # Of the taint. If it cannot be removed now, OverloadTaint.expire() tries again.
            message = message or f"the overload taint: {error}"
        return EvictionAnswer(
            cgroup=victim.eviction.cgroup,
            channel=victim.eviction.channel,
            result=result,
            message=message,
            wait_ns=min(wait_ns, _MAX_WAIT_NS),
        )

    def _check(self, victim: Victim) -> None:
        # Otherwise a server that was slow for minutes would get all decisions of that time at once.
        if self._closed:
            raise _TooLateError("the agent is shutting down")
        if self._clock_ns() >= victim.until_ns:
            raise _TooLateError("the API server took so long that the evidence is old")

    def _request(self, victim: Victim) -> tuple[EvictionResult, str, int]:
        namespace, name = segment(victim.namespace), segment(victim.name)
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        grace_ns = victim.grace_s * NS_PER_SEC + _SLACK_NS
        try:
            self._check(victim)
            self._api.create(path, _eviction(victim))
        except _TooLateError as error:
            return EvictionResult.HELD, str(error), 0
        except ApiUnreachable as error:
            # If the request was sent, the pod may be evicted although the response was lost.
            if error.possibly_sent:
                return EvictionResult.UNANSWERED, str(error), grace_ns
            return EvictionResult.HELD, str(error), 0
        except ApiError as error:
            return _refusal(error)
        return EvictionResult.EVICTED, "the API server accepted it", grace_ns


def _eviction(victim: Victim) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": victim.namespace, "name": victim.name},
        # Prevents the eviction of a successor of the same name.
        "deleteOptions": {"preconditions": {"uid": victim.uid}},
    }


def _refusal(error: ApiError) -> tuple[EvictionResult, str, int]:
    """Classify an error: this pod is refused, all evictions are held, or the pod is gone."""
    wait_ns = round((error.retry_after_s or 0.0) * NS_PER_SEC)
    message = str(error)
    if error.status in (404, 409):
        return EvictionResult.GONE, message, 0
    # An overloaded server answers any request with 429; several budgets that select the pod cause
    # 500 (pkg/registry/core/pod/storage/eviction.go).
    named = "DisruptionBudget" in error.causes or "PodDisruptionBudget" in error.message
    if named and error.status in (403, 429, 500):
        return EvictionResult.REFUSED, message, 0
    if error.status in (401, 403) and "cannot create resource" in error.message:
        return EvictionResult.HELD, message, _FORBIDDEN_NS
    if error.status in (400, 403, 422):
        return EvictionResult.REFUSED, message, 0  # for example by an admission policy
    return EvictionResult.HELD, message, wait_ns


class PodEvictions:
    """Evictions of pods for the control thread; the requests are made in the worker's thread.

    :param pod_of: returns the pod of a cgroup, ``None`` if it is not the cgroup of a known pod.
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
        self._taint = OverloadTaint(api, node, config.mark, config.mark_ns / NS_PER_SEC)
        self._client = EvictionClient(api, self._taint, clock_ns)
        # (answer, pod, explanation, for memory); appended to by the worker's thread too.
        self._answers: deque[tuple[EvictionAnswer, Pod, str, bool]] = deque()
        worker.submit_periodic(_EXPIRE_EVERY_S, self._taint.expire, _TAINT_JOB)

    @property
    def marked_until_s(self) -> float | None:
        """The end of the node's taint in seconds since the epoch; ``None``: there is none."""
        return self._taint.until_s or None

    @property
    def may_be_marked(self) -> bool:
        """Whether the node may have the taint."""
        return self._taint.present

    def request(self, eviction: Eviction, plan: Plan, *, enforcing: bool) -> bool:
        """Begin *eviction* of *plan*; return False if its cgroup is not that of a known pod."""
        pod = self._pod_of(eviction.cgroup)
        if pod is None:
            return False
        # Tenants read the Events in their namespaces, but not the log of the agent.
        named = eviction.service.startswith(f"{pod.namespace}/")
        about = pod, explain_eviction(eviction, plan, named=named), not eviction.service
        which = eviction.cgroup, eviction.channel
        if not (enforcing and self._config.enabled):
            text = "kubernetes.eviction is not enabled" if enforcing else "the agent only observes"
            answer = EvictionAnswer(*which, EvictionResult.REPORTED, text, _REPORT_NS)
            self._answers.append((answer, *about))
            return True
        until_ns = self._clock_ns() + _FRESH_NS
        victim = Victim(eviction, pod.namespace, pod.name, pod.uid, pod.grace_s, until_ns)

        def evict() -> None:
            self._answers.append((self._client.evict(victim), *about))

        if not self._worker.submit(evict, _JOB):
            text = "too many requests wait for the API server"
            self._answers.append((EvictionAnswer(*which, EvictionResult.HELD, text), *about))
        return True

    def answers(self) -> Iterator[EvictionAnswer]:
        """Yield the answers received since the last call, and emit an Event for each."""
        while self._answers:
            answer, pod, explanation, for_memory = self._answers.popleft()
            regarding = Regarding("Pod", pod.namespace, pod.name, pod.uid)
            kind: EventType = "Warning" if answer.result.leaves else "Normal"
            note = f"{answer.result}: {explanation} [{answer.message}]"
            reason = _REASONS[answer.result]
            if reason is Reason.EVICTED and for_memory:
                reason = Reason.EVICTED_FOR_MEMORY
            self._events.emit(regarding, reason, note, kind)
            yield answer

    def remove_taint(self) -> None:
        """Stop evicting and remove the taint, in the worker's thread; after an error once more."""
        self._client.close()
        for _ in range(2):  # what is removed is not requested again
            self._worker.submit(self._taint.remove, _TAINT_JOB, first=True)
