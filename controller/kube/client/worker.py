# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A worker thread for requests, so that the control thread does not wait for the network."""

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

_MAX_JOBS = 1000


@dataclass(slots=True)
class _Periodic:
    job: Job
    name: str
    period_s: float
    due_s: float
    backoff: Backoff


class Worker:
    """Runs jobs in order in one thread; failed requests are counted, and logged on change.

    Periodic jobs that are due run before submitted ones: the queue may be long while the server is
    slow, and periodic jobs remove what must not outlast its time. A submitted job that fails is
    not retried; retrying is up to its submitter.

    ``failure`` is an exception of a job other than ``ApiError`` and ``ApiUnreachable``: a bug,
    which ends the thread and must be raised by the control thread.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._random = Random()  # noqa: S311 - jitter needs no secure source
        self._condition = threading.Condition()
        self._jobs: deque[tuple[Job, str]] = deque()
        self._periodic: list[_Periodic] = []
        self._closing = self._abandoned = False
        self._started = 0
        self._request_errors = RequestErrors(_log)
        self._thread = threading.Thread(target=self._run, name="kube-worker", daemon=True)
        self.failure: Exception | None = None
        self._thread.start()

    def submit(self, job: Job, name: str = "job", *, first: bool = False) -> bool:
        """Queue *job* to run once; return False if it is dropped.

        A job is dropped if 1,000 are waiting or the worker is closed.

        :param first: run it before all waiting jobs; it is not dropped because of their number.
        """
        with self._condition:
            if self._closing or (len(self._jobs) >= _MAX_JOBS and not first):
                return False
            if first:
                self._jobs.appendleft((job, name))
            else:
                self._jobs.append((job, name))
            self._condition.notify()
        return True

    def submit_periodic(self, period_s: float, job: Job, name: str = "job") -> None:
        """Run *job* now and every *period_s* seconds, with back-off while it fails."""
        backoff = Backoff(self._random, longest_s=max(period_s, 60.0))
        with self._condition:
            self._periodic.append(_Periodic(job, name, period_s, time.monotonic(), backoff))
            self._condition.notify()

    @property
    def errors(self) -> Mapping[str, int]:
        """The number of failed requests by ``unreachable`` or HTTP status."""
        return self._request_errors.counts

    @property
    def denied(self) -> Mapping[str, str]:
        """The jobs that the server forbids now (HTTP status 403), with its message."""
        return self._request_errors.denied

    def close(self, within_s: float = 5.0) -> None:
        """Run the waiting jobs for at most *within_s* seconds and end the thread.

        A job that began before is aborted after half of that time, so that its request does not
        take the time of the waiting ones.
        """
        with self._condition:
            self._closing = True
            before = self._started
            self._condition.notify()
        self._thread.join(within_s / 2)
        with self._condition:
            if self._started == before:
                self._api.abort(self._thread)
        self._thread.join(within_s / 2)
        self._abandoned = True
        self._api.abort_until_ended(self._thread)

    def _run(self) -> None:
        try:
            while (due := self._next()) is not None:
                self._execute(*due)
        except Exception as error:  # raised by the control thread
            self.failure = error

    def _next(self) -> tuple[Job, str, _Periodic | None] | None:
        with self._condition:
            while True:
                if self._abandoned or (self._closing and not self._jobs):
                    return None
                now_s = time.monotonic()
                first = min(self._periodic, key=lambda each: each.due_s, default=None)
                if first is not None and first.due_s <= now_s and not self._closing:
                    self._started += 1
                    return first.job, first.name, first
                if self._jobs:
                    self._started += 1
                    return *self._jobs.popleft(), None
                self._condition.wait(None if first is None else first.due_s - now_s)

    def _execute(self, job: Job, name: str, periodic: _Periodic | None) -> None:
        wait_s = 0.0 if periodic is None else periodic.period_s
        try:
            job()
        except (ApiError, ApiUnreachable) as error:
            self._request_errors.failed(name, error)
            if periodic is not None:
                wait_s = periodic.backoff.next_s(getattr(error, "retry_after_s", None))
        else:
            self._request_errors.succeeded(name)
            if periodic is not None:
                periodic.backoff.reset()
        if periodic is not None:
            periodic.due_s = time.monotonic() + wait_s
