# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The loop of the controller of a rollout: it looks every 20 s while it holds its Lease."""

from collections.abc import Callable
import logging
import time

from controller.kube.client.errors import ApiError, ApiUnreachable, RequestErrors
from controller.kube.lease import Lease
from controller.rollout.controller import Controller
from controller.rollout.metrics import Seen

__all__ = ("Loop",)

_log = logging.getLogger(__name__)

# A third of the time that the Lease lasts.
_EVERY_S = 20.0
# The longest time that counts between two looks: while nobody looked, nothing was soaked.
_MOST_PASSED_S = 2 * _EVERY_S


class Loop:
    """Looks with *controller* while *lease* is held; ``leads``, for any thread, says whether it is.

    :param clock: seconds of CLOCK_MONOTONIC.
    :param wall_clock: seconds since 1970.
    """

    def __init__(
        self,
        controller: Controller,
        lease: Lease,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._controller, self._lease = controller, lease
        self._clock, self._wall_clock = clock, wall_clock
        self._looked_s: float | None = None
        self._errors = RequestErrors(_log)
        self.leads = False

    def seen(self) -> Seen:
        """Return what the metrics tell; for any thread."""
        return Seen(self.leads, self._controller.state, self._controller.problem)

    def run(self, wait: Callable[[float], bool]) -> None:
        """Look until *wait*, for so many seconds, returns that it is the end; release the Lease."""
        while True:
            self._guarded("rollout", self.once)
            if wait(_EVERY_S):
                break
        self.leads = False
        self._guarded("lease", self._lease.release)

    def once(self) -> None:
        """Look once if the Lease is held.

        :raises ApiError: the server refused a request.
        :raises ApiUnreachable: the server did not answer.
        """
        self.leads = False  # until the server has said so
        self.leads = self._lease.hold()
        if not self.leads:
            self._looked_s = None
            return
        now_s, looked_s = self._clock(), self._looked_s
        passed_s = 0.0 if looked_s is None else min(now_s - looked_s, _MOST_PASSED_S)
        self._controller.look(self._wall_clock(), passed_s)
        self._looked_s = now_s  # only now: the time of a look that failed counts with the next one

    def _guarded(self, name: str, job: Callable[[], None]) -> None:
        try:
            job()
        except (ApiError, ApiUnreachable) as error:
            self._errors.failed(name, error)
        else:
            self._errors.succeeded(name)
