# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What went wrong with the API server: counted each time, logged once until it changes."""

from collections import Counter
from collections.abc import Mapping
import logging

from controller.kube.errors import ApiError, ApiUnreachable

__all__ = ("Troubles",)


class Troubles:
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
