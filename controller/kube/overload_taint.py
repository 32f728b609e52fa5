# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The overload taint: keeps evicted pods from returning to the node, for a limited time.

An annotation of the same key holds the time at which the taint ends (configuration: ``mark``).

The taints of a node are one list, which kubelet, the autoscaler and people change too and which the
API replaces as a whole. Taints of other keys are written back unchanged.
"""

from collections.abc import Callable
from datetime import UTC, datetime
import time

from controller.config.sections.eviction import MarkEffect
from controller.kube.client.api import Api
from controller.kube.node import Json, annotation, change_node, taints

__all__ = ("TAINT_KEY", "OverloadTaint", "remove_taint")

# Key of the taint, and of the annotation with its end.
TAINT_KEY = "sweetpoint.dev/overloaded"


class OverloadTaint:
    """Sets, expires and removes the taint of one node; for the worker's thread.

    ``until_s``, which any thread may read, is the end of the taint in seconds since the epoch; 0:
    there may be a taint of an earlier run, which the first ``expire`` removes; ``None``: none.

    :param effect: ``MarkEffect.NONE``: no taint is set.
    :param lasts_s: duration of the taint in seconds, from the last ``set``.
    :param clock: seconds of CLOCK_MONOTONIC, so that a change of the date does not prolong the
        taint.
    :param wall_clock: seconds since the epoch, for the annotation.
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
        self.until_s: float | None = 0.0

    @property
    def present(self) -> bool:
        """Whether the node may have the taint now."""
        return self.until_s is not None

    def set(self) -> None:
        """Set the taint, or prolong it.

        :raises ApiError: the server refused a request.
        :raises ApiUnreachable: the server did not answer; the taint may be set.
        """
        if self._effect is MarkEffect.NONE:
            return
        until_s = self._wall_clock() + self._lasts_s
        end = datetime.fromtimestamp(until_s, UTC).isoformat(timespec="seconds")
        # Before the request, which may fail although the taint is set.
        self.until_s, self._end_s = until_s, self._clock() + self._lasts_s
        _change(self._api, self._node, {"key": TAINT_KEY, "effect": str(self._effect)}, end)

    def remove(self) -> None:
        """Remove the taint, also one of an earlier run.

        After an error of the request the taint counts as present, and expired.

        :raises ApiError: the server refused a request.
        :raises ApiUnreachable: the server did not answer.
        """
        if self.until_s is not None:
            self.until_s, self._end_s = 0.0, self._clock()
            remove_taint(self._api, self._node)
            self.until_s = None

    def expire(self) -> None:
        """Remove the taint if it has expired or is of an earlier run; errors as ``remove``."""
        if self.until_s is not None and self._clock() >= self._end_s:
            self.remove()


def remove_taint(api: Api, node: str) -> bool:
    """Remove the taint from *node*; return whether there was one.

    A node that does not exist has none.

    :raises ApiError: the server refused a request.
    :raises ApiUnreachable: the server did not answer.
    """
    return _change(api, node, None, None)


def _change(api: Api, node: str, taint: dict[str, str] | None, end: str | None) -> bool:
    """Set the node's taint and annotation; return whether that was a change."""

    def patch(current: Json) -> Json | None:
        before = taints(current)
        ours = [] if taint is None else [taint]
        wanted = [each for each in before if each.get("key") != TAINT_KEY] + ours
        if wanted == before and annotation(current, TAINT_KEY) == end:
            return None
        change: Json = {"metadata": {"annotations": {TAINT_KEY: end}}}
        return change if wanted == before else {**change, "spec": {"taints": wanted}}

    return change_node(api, node, patch)
