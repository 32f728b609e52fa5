# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between us and the API server, in lines that are safe to print.

What went wrong with the API server: counted each time, logged once until it changes.
"""

from collections import Counter
from collections.abc import Mapping
import logging

__all__ = (
    "ApiError",
    "ApiInvalidResponse",
    "ApiUnreachable",
    "RequestErrors",
    "one_line",
    "watch_may_go_on",
)

_LONGEST_LINE = 300
# Statuses after which a watch may go on where it was; after others only a new list helps.
_GO_ON = (401, 403, 429, 503, 504)


def one_line(text: object) -> str:
    """Return somebody else's text fit for a log: one line of printable ASCII, short."""
    found = " ".join(ascii(str(text)[: 4 * _LONGEST_LINE])[1:-1].replace("\\n", " ").split())
    return found if len(found) <= _LONGEST_LINE else found[: _LONGEST_LINE - 3] + "..."


class ApiError(Exception):
    """The API server said no.

    ``status`` is the HTTP status, or the ``code`` of an error inside a watch. ``reason`` and
    ``message`` are those of its Status object, ``causes`` the reasons in its details (such as
    ``DisruptionBudget``). ``retry_after_s``: how long it wants to be left in peace, if it said.
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
    """No answer, half an answer, or no way to ask.

    ``asked``: whether a change was made is not known; else nothing was asked, because no connection
    ever stood.
    """

    def __init__(self, why: object) -> None:
        self.asked = True
        super().__init__(one_line(why))


class ApiInvalidResponse(ApiUnreachable):
    """An answer that makes no sense."""


def watch_may_go_on(error: ApiError | ApiUnreachable) -> bool:
    """Return whether a watch that ended so may go on where it was.

    A list of everything, from every node of a cluster, is what a server that is in trouble needs
    least.
    """
    if isinstance(error, ApiError):
        return error.status in _GO_ON
    return not isinstance(error, ApiInvalidResponse)  # the same would come again


class RequestErrors:
    """For one thread to tell and any to read.

    ``last`` is the trouble there is now, in one line, by what could not be done. What is counted
    or shown there is in the log already.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: Counter[str] = Counter()
        self._kinds: dict[str, str] = {}
        self.last: Mapping[str, str] = {}

    def failed(self, what: str, error: ApiError | ApiUnreachable) -> None:
        """*what* was to be done and was not."""
        kind = "unreachable" if isinstance(error, ApiUnreachable) else str(error.status)
        if self._kinds.get(what) != kind:
            self._kinds[what] = kind
            self._log.warning("API server, %s: %s", what, error)
        self.last = {**self.last, what: str(error)}
        self._counts[kind] += 1

    def worked(self, what: str) -> None:
        """*what* was done."""
        if what in self._kinds:
            del self._kinds[what]
            self._log.info("API server, %s: works again", what)
            self.last = {key: text for key, text in self.last.items() if key != what}

    @property
    def counts(self) -> Mapping[str, int]:
        """How often what went wrong: ``unreachable``, or the HTTP status."""
        return self._counts.copy()
