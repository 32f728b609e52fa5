# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How many best-effort pods completed: the work that a cluster gets from its best-effort jobs.

Kubelet reports the end of a pod to the API server before or after it removes the cgroup, so a pod
without its cgroup is looked up until the list says how it ended.
"""

from collections.abc import Mapping

from controller.workloads.pods.pod import Pod

__all__ = ("CompletedPods",)


class CompletedPods:
    """Counts pods whose end was seen: ``count`` of them succeeded."""

    def __init__(self) -> None:
        self.count = 0
        self._running: set[str] = set()
        self._gone: set[str] = set()

    def see(self, uid: str, pod: Pod) -> None:
        """Take the API object of the best-effort pod *uid*, which has a cgroup."""
        if not pod.finished:
            self._running.add(uid)
        elif uid in self._running:
            self._end(uid, pod)

    def lose(self, uid: str) -> None:
        """Note that the pod *uid* has no cgroup any more."""
        if uid in self._running:
            self._gone.add(uid)

    def find(self, listed: Mapping[str, Pod]) -> None:
        """Look up how pods without a cgroup ended."""
        for uid in [*self._gone]:
            pod = listed.get(uid)
            if pod is None or pod.finished:
                self._end(uid, pod)

    def _end(self, uid: str, pod: Pod | None) -> None:
        self._running.discard(uid)
        self._gone.discard(uid)
        self.count += pod is not None and pod.succeeded
