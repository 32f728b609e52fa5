# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A thread for requests that the control thread must not wait for."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
import logging
from random import Random
import threading
import time

from controller.kube.client.api import Api
from controller.kube.client.errors import ApiError, ApiUnreachable, RequestErrors
from controller.kube.client.rate_limit import Backoff

__all__ = ("Job", "Worker")

_log = logging.getLogger(__name__)

Job = Callable[[], None]

_MOST_JOBS = 1000


@dataclass(slots=True)
class _Periodic:
    job: Job
    name: str
    period_s: float
    due_s: float
    backoff: Backoff


class Worker:
    """Runs jobs in order, one at a time; what the API server refuses is counted and logged once.

    Periodic jobs that are due go before those that were submitted: these may be many when the
    server is slow, and those take back what must not stay.
    A submitted job that fails is not run again: who submitted it knows whether that makes sense.
    ``failure`` is what a job raised beside ``ApiError`` and ``ApiUnreachable``: a bug, with which
    the thread ends; the control thread must raise it.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._random = Random()  # noqa: S311 - jitter is no secret
        self._condition = threading.Condition()
        self._jobs: deque[tuple[Job, str]] = deque()
        self._periodic: list[_Periodic] = []
        self._closing = self._abandoned = False
        self._troubles = RequestErrors(_log)
        self._thread = threading.Thread(target=self._run, name="kube-worker", daemon=True)
        self.failure: Exception | None = None
        self.dropped = 0
        self._thread.start()

    def submit(self, job: Job, name: str = "job", *, first: bool = False) -> bool:
        """Have *job* run once, soon; False: too many are waiting, or it is closed (``dropped``).

        With *first* it runs before all that are waiting, however many.
        """
        with self._condition:
            if self._closing or (len(self._jobs) >= _MOST_JOBS and not first):
                self.dropped += 1
                return False
            if first:
                self._jobs.appendleft((job, name))
            else:
                self._jobs.append((job, name))
            self._condition.notify()
        return True

    def submit_periodic(self, period_s: float, job: Job, name: str = "job") -> None:
        """Have *job* run now and every *period_s* seconds; with back-off while it fails."""
        backoff = Backoff(self._random, longest_s=max(period_s, 60.0))
        with self._condition:
            self._periodic.append(_Periodic(job, name, period_s, time.monotonic(), backoff))
            self._condition.notify()

    @property
    def waiting(self) -> int:
        """How many submitted jobs have not begun."""
        return len(self._jobs)

    @property
    def errors(self) -> Mapping[str, int]:
        """How many requests failed, by ``unreachable`` or HTTP status."""
        return self._troubles.counts

    @property
    def problems(self) -> Mapping[str, str]:
        """What does not work now, one line by the name of the job."""
        return self._troubles.last

    def close(self, within_s: float = 5.0) -> None:
        """Run the jobs that are waiting, for at most *within_s* seconds, and end."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join(within_s)
        self._abandoned = True
        self._api.end(self._thread)

    def _run(self) -> None:
        try:
            while (due := self._next()) is not None:
                self._do(*due)
        except Exception as error:  # the control thread raises it
            self.failure = error

    def _next(self) -> tuple[Job, str, _Periodic | None] | None:
        with self._condition:
            while True:
                if self._abandoned or (self._closing and not self._jobs):
                    return None
                now_s = time.monotonic()
                first = min(self._periodic, key=lambda each: each.due_s, default=None)
                if first is not None and first.due_s <= now_s and not self._closing:
                    return first.job, first.name, first
                if self._jobs:
                    return *self._jobs.popleft(), None
                self._condition.wait(None if first is None else first.due_s - now_s)

    def _do(self, job: Job, name: str, periodic: _Periodic | None) -> None:
        wait_s = 0.0 if periodic is None else periodic.period_s
        try:
            job()
        except (ApiError, ApiUnreachable) as error:
            self._troubles.failed(name, error)
            if periodic is not None:
                wait_s = periodic.backoff.next_s(getattr(error, "retry_after_s", None))
        else:
            self._troubles.worked(name)
            if periodic is not None:
                periodic.backoff.reset()
        if periodic is not None:
            periodic.due_s = time.monotonic() + wait_s
