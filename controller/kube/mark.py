# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The mark on the node: a taint against the return of evicted pods, and when it ends.

Whoever puts a taint on a node shares one list with kubelet, the autoscaler and people, and the
API replaces that list as a whole. So every change says which version of the node it was made
from; if there is a newer one it is made anew. Taints of another key stay as they are.
"""

from collections.abc import Callable
from datetime import UTC, datetime
import time
from typing import Any

from controller.configsections.kube_eviction import MarkEffect
from controller.kube.api import Api, PatchKind, segment
from controller.kube.errors import ApiError

__all__ = ("MARK", "Mark", "unmark")

# Key of the taint, and of the annotation with the time at which it ends.
MARK = "sweetpoint.dev/overloaded"
# Somebody else changed the node between our look and our change; the pause grows with each try.
_TRIES = 8
_PAUSE_S = 0.02


class Mark:
    """Puts the mark and takes it back; for the worker's thread alone, but for ``until_s``.

    Nothing is known of an earlier run's mark before the first ``tend``.

    :param clock: seconds since the epoch; the mark's end is for others to read.
    """

    def __init__(
        self,
        api: Api,
        node: str,
        effect: MarkEffect,
        lasts_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._node = node
        self._effect = effect
        self._lasts_s = lasts_s
        self._clock = clock
        # When the mark ends; 0: there may be one of an earlier run. None: there is none.
        self.until_s: float | None = 0.0

    @property
    def present(self) -> bool:
        """Whether the node may bear the mark now."""
        return self.until_s is not None

    def put(self) -> None:
        """Mark the node, or let its mark last longer.

        :raises ApiError: the server does not let us.
        :raises ApiUnreachable: it did not answer; the mark may be there.
        """
        if self._effect is MarkEffect.NONE:
            return
        until_s = self._clock() + self._lasts_s
        end = datetime.fromtimestamp(until_s, UTC).isoformat(timespec="seconds")
        self.until_s = until_s  # whatever becomes of the request
        _change(self._api, self._node, {"key": MARK, "effect": str(self._effect)}, end)

    def take_back(self) -> None:
        """Remove the mark, whoever put it; errors as ``put``, and then it is still to be done."""
        if self.until_s is not None:
            self.until_s = 0.0
            unmark(self._api, self._node)
            self.until_s = None

    def tend(self) -> None:
        """Take the mark back if its time is over, or if it is an earlier run's."""
        if self.until_s is not None and self._clock() >= self.until_s:
            self.take_back()


def unmark(api: Api, node: str) -> bool:
    """Remove the mark from *node*; whether there was one.

    A node that is gone has none.

    :raises ApiError: the server does not let us.
    :raises ApiUnreachable: it did not answer.
    """
    return _change(api, node, None, None)


def _change(api: Api, node: str, taint: dict[str, str] | None, end: str | None) -> bool:
    """Bring the node's taint and annotation to these; whether that took a change."""
    path = f"/api/v1/nodes/{segment(node)}"
    for tried in range(_TRIES):
        time.sleep(tried * _PAUSE_S)
        try:
            patch = _patch(api.get(path), taint, end)
            if patch is not None:
                api.patch(path, patch, kind=PatchKind.MERGE)
        except ApiError as error:
            if error.status == 404:
                return False
            if error.status != 409 or tried == _TRIES - 1:
                raise
        else:
            return patch is not None
    raise AssertionError("the last try returns or raises")


def _patch(
    node: dict[str, Any], taint: dict[str, str] | None, end: str | None
) -> dict[str, Any] | None:
    meta = node["metadata"]
    taints = (node.get("spec") or {}).get("taints") or []
    ours = [] if taint is None else [taint]
    wanted = [each for each in taints if each.get("key") != MARK] + ours
    annotation = (meta.get("annotations") or {}).get(MARK)
    if wanted == taints and annotation == end:
        return None
    patch: dict[str, Any] = {
        "metadata": {"resourceVersion": meta["resourceVersion"], "annotations": {MARK: end}}
    }
    if wanted != taints:
        patch["spec"] = {"taints": wanted}
    return patch
