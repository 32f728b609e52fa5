# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A Lease: at most one of several processes acts at a time.

The rules are those of client-go (tools/leaderelection). The time of another holder is compared
with nothing: its Lease has ended when it did not change for its duration by the own clock.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
import time
from typing import Any

from controller.kube.client.api import Api, PatchKind, segment
from controller.kube.client.errors import ApiError, ApiInvalidResponse
from controller.kube.node import mapping

__all__ = ("Lease",)

_DURATION_S = 60


class Lease:
    """The Lease *name* in *namespace* for *holder*, a name that no other process has.

    It lasts a minute after each ``hold``.

    :param clock: seconds of CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        holder: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{segment(namespace)}/leases"
        self._path = f"{self._collection}/{segment(name)}"
        self._name, self._holder = name, holder
        self._clock = clock
        self._seen: tuple[object, object] | None = None
        self._seen_s = 0.0

    def hold(self) -> bool:
        """Take or renew the Lease; return whether it is held.

        :raises ApiError: the server refused a request.
        :raises ApiUnreachable: the server did not answer.
        """
        try:
            return self._hold()
        except ApiError as error:
            if error.status == HTTPStatus.CONFLICT:  # another one was faster
                return False
            raise

    def _hold(self) -> bool:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = {"holderIdentity": self._holder, "renewTime": now}
        try:
            found = self._api.get(self._path)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            spec = {**ours, "acquireTime": now, "leaseDurationSeconds": _DURATION_S}
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name},
                "spec": spec,
            }
            self._api.create(self._collection, body)
            return True
        holder = mapping(found, "spec").get("holderIdentity")
        if holder and holder != self._holder:
            if not self._has_ended(holder, mapping(found, "spec").get("renewTime")):
                return False
            ours["acquireTime"] = now
        self._patch(found, ours)
        return True

    def _has_ended(self, *seen: object) -> bool:
        now_s = self._clock()
        if seen != self._seen:
            self._seen, self._seen_s = (seen[0], seen[1]), now_s
        return now_s - self._seen_s >= _DURATION_S

    def release(self) -> None:
        """Give the Lease back if it is held, so that another process need not wait.

        :raises ApiError: the server refused a request.
        :raises ApiUnreachable: the server did not answer.
        """
        found = self._api.get(self._path)
        if mapping(found, "spec").get("holderIdentity") == self._holder:
            self._patch(found, {"holderIdentity": None})

    def _patch(self, found: dict[str, Any], spec: dict[str, Any]) -> None:
        version = mapping(found, "metadata").get("resourceVersion")
        if not isinstance(version, str):
            raise ApiInvalidResponse("a Lease without a version")
        body = {"metadata": {"resourceVersion": version}, "spec": spec}
        self._api.patch(self._path, body, kind=PatchKind.MERGE)
