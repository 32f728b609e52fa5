# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Evictions through the API server, which asks the disruption budgets; nobody is ever deleted.

The node is marked before a pod is asked to go, because its controller makes the next one as soon
as it is. Called in the worker's thread: it waits for the network.
"""

from collections.abc import Callable
import time
from typing import Any, NamedTuple

from controller.decision import Eviction
from controller.kube.api import Api, segment
from controller.kube.errors import ApiError, ApiUnreachable
from controller.kube.mark import Mark
from controller.model import EvictionAnswer, EvictionResult
from controller.units import NS_PER_SEC

__all__ = ("Evictor", "Victim")

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


class Evictor:
    """Asks the API server to evict pods of this node, one after the other."""

    def __init__(
        self, api: Api, mark: Mark, clock_ns: Callable[[], int] = time.monotonic_ns
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
            self._mark.put()
            result, message, wait_ns = self._ask(victim)
            on_its_way = result in (EvictionResult.EVICTED, EvictionResult.UNANSWERED)
            if not on_its_way and not was_marked:
                self._mark.take_back()
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
            return _no(error)
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


def _no(error: ApiError) -> tuple[EvictionResult, str, int]:
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
