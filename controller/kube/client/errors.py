# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Errors of requests to the API server: exceptions with printable messages, counts, log lines."""

from collections import Counter
from collections.abc import Mapping
import logging

__all__ = (
    "ApiError",
    "ApiInvalidResponse",
    "ApiSilent",
    "ApiUnreachable",
    "RequestErrors",
    "can_resume_watch",
    "one_line",
)

_MAX_LINE_LENGTH = 300
# HTTP statuses after which a watch can be resumed at its version; others require a new list.
_RESUMABLE = (401, 403, 429, 503, 504)
_UNREACHABLE, _FORBIDDEN = "unreachable", "403"


def one_line(text: object) -> str:
    """Return untrusted text for a log: one line of at most 300 printable ASCII characters."""
    line = " ".join(ascii(str(text)[: 4 * _MAX_LINE_LENGTH])[1:-1].replace("\\n", " ").split())
    return line if len(line) <= _MAX_LINE_LENGTH else line[: _MAX_LINE_LENGTH - 3] + "..."


class ApiError(Exception):
    """An error status from the API server.

    ``status`` is the HTTP status, or the ``code`` of an ERROR event in a watch. ``reason`` and
    ``message`` are those of the Status object, ``causes`` the reasons in its details (such as
    ``DisruptionBudget``). ``retry_after_s``: the wait in seconds that the server asks for, ``None``
    if it asks for none.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after_s: float | None = None,
        causes: tuple[str, ...] = (),
    ) -> None:
        self.status = status
        self.reason = one_line(reason)
        self.message = one_line(message)
        self.retry_after_s = retry_after_s
        self.causes = causes
        super().__init__(f"{status} {self.reason}: {self.message}")


class ApiUnreachable(Exception):
    """No response, an incomplete response, or no way to send a request.

    ``possibly_sent``: the request may have reached the server, so it is unknown whether a change
    was made; if False, there never was a connection and nothing was sent.
    """

    def __init__(self, reason: object) -> None:
        self.possibly_sent = True
        super().__init__(one_line(reason))


class ApiSilent(ApiUnreachable):
    """A response that began, and then no data for as long as a single read may take."""


class ApiInvalidResponse(ApiUnreachable):
    """A response that does not conform to HTTP, JSON or the Kubernetes API."""


def can_resume_watch(error: ApiError | ApiUnreachable) -> bool:
    """Return whether a watch that ended with *error* can be resumed at its version.

    Resuming is preferred, because new lists from every node of a cluster would add to the load of
    a server that is already overloaded.
    """
    if isinstance(error, ApiError):
        return error.status in _RESUMABLE
    return not isinstance(error, ApiInvalidResponse)  # it would be received again


class RequestErrors:
    """Failures of the requests of one thread: counted each time, logged when their kind changes.

    ``last`` maps each task that fails now to its last error, in one line, ``denied`` those with
    HTTP status 403. One thread records, any thread may read; a failure is written to the log before
    it can be read here.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: Counter[str] = Counter()
        self._kinds: dict[str, str] = {}
        self.last: Mapping[str, str] = {}
        self.denied: Mapping[str, str] = {}

    def failed(self, task: str, error: ApiError | ApiUnreachable) -> None:
        """Record that *task* failed with *error*."""
        kind = _UNREACHABLE if isinstance(error, ApiUnreachable) else str(error.status)
        if self._kinds.get(task) != kind:
            self._kinds[task] = kind
            self._log.warning("API server, %s: %s", task, error)
        self.last = {**self.last, task: str(error)}
        if kind == _FORBIDDEN:
            self.denied = {**self.denied, task: str(error)}
        elif kind != _UNREACHABLE:
            self.denied = _without(self.denied, task)
        self._counts[kind] += 1

    def succeeded(self, task: str) -> None:
        """Record that *task* succeeded."""
        if task in self._kinds:
            del self._kinds[task]
            self._log.info("API server, %s: works again", task)
            self.last = _without(self.last, task)
            self.denied = _without(self.denied, task)

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of failures by kind: ``unreachable``, or the HTTP status."""
        return self._counts.copy()


def _without(texts: Mapping[str, str], task: str) -> Mapping[str, str]:
    return {key: text for key, text in texts.items() if key != task}
