# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The mark on the node: a taint against the return of evicted pods, and when it ends.

Whoever puts a taint on a node shares one list with kubelet, the autoscaler and people, and the
API replaces that list as a whole. Taints of another key stay as they are.
"""

from collections.abc import Callable
from datetime import UTC, datetime
import time

from controller.config.sections.eviction import MarkEffect
from controller.kube.client.api import Api
from controller.kube.node import Json, annotation, change_node, taints

__all__ = ("MARK", "OverloadTaint", "remove_taint")

# Key of the taint, and of the annotation with the time at which it ends.
MARK = "sweetpoint.dev/overloaded"


class OverloadTaint:
    """Puts the mark and takes it back; for the worker's thread alone, but for ``until_s``.

    Nothing is known of an earlier run's mark before the first ``tend``.

    :param clock: seconds of CLOCK_MONOTONIC, because the mark must end when the date is set back.
    :param wall_clock: seconds since the epoch; the mark's end is for others to read.
    """

    def __init__(
        self,
        api: Api,
        node: str,
        effect: MarkEffect,
        lasts_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._node = node
        self._effect = effect
        self._lasts_s = lasts_s
        self._clock = clock
        self._wall_clock = wall_clock
        self._end_s = clock()
        # The same since the epoch; 0: there may be one of an earlier run. None: there is none.
        self.until_s: float | None = 0.0

    @property
    def present(self) -> bool:
        """Whether the node may bear the mark now."""
        return self.until_s is not None

    def set(self) -> None:
        """Mark the node, or let its mark last longer.

        :raises ApiError: the server does not let us.
        :raises ApiUnreachable: it did not answer; the mark may be there.
        """
        if self._effect is MarkEffect.NONE:
            return
        until_s = self._wall_clock() + self._lasts_s
        end = datetime.fromtimestamp(until_s, UTC).isoformat(timespec="seconds")
        # Whatever becomes of the request.
        self.until_s, self._end_s = until_s, self._clock() + self._lasts_s
        _change(self._api, self._node, {"key": MARK, "effect": str(self._effect)}, end)

    def remove(self) -> None:
        """Remove the mark, whoever put it; errors as ``put``, and then it is still to be done."""
        if self.until_s is not None:
            self.until_s, self._end_s = 0.0, self._clock()
            remove_taint(self._api, self._node)
            self.until_s = None

    def expire(self) -> None:
        """Take the mark back if its time is over, or if it is an earlier run's."""
        if self.until_s is not None and self._clock() >= self._end_s:
            self.remove()


def remove_taint(api: Api, node: str) -> bool:
    """Remove the mark from *node*; whether there was one.

    A node that is gone has none.

    :raises ApiError: the server does not let us.
    :raises ApiUnreachable: it did not answer.
    """
    return _change(api, node, None, None)


def _change(api: Api, node: str, taint: dict[str, str] | None, end: str | None) -> bool:
    """Bring the node's taint and annotation to these; whether that took a change."""

    def patch(found: Json) -> Json | None:
        before = taints(found)
        ours = [] if taint is None else [taint]
        wanted = [each for each in before if each.get("key") != MARK] + ours
        if wanted == before and annotation(found, MARK) == end:
            return None
        made: Json = {"metadata": {"annotations": {MARK: end}}}
        return made if wanted == before else {**made, "spec": {"taints": wanted}}

    return change_node(api, node, patch)
