# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Why a source gave no figure.

What is known of one source: its last answer, and what went wrong.

Written by the thread of the sources, read by others. Every field is replaced as a whole or
keeps its size, so a reader never sees half of a change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
import logging
import math
from typing import NamedTuple

from controller.config.sections.service_level import (
    JsonField,
    MetricLine,
    PrometheusQuery,
    Push,
    ServiceSource,
)
from controller.core.model import ServiceReading
from controller.core.units import format_duration

__all__ = (
    "Ledger",
    "Reason",
    "ServiceState",
    "SourceError",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """What is known of the source of a service's own figure.

    ``kind`` is prometheus, metrics, json or push. ``value`` is in ns if ``is_time``, and
    ``None`` when there is none or it is too old; ``age_ns`` is that of the last answer, and
    ``problem`` is empty while all is well.
    """

    service: str
    kind: str
    value: float | None
    is_time: bool
    age_ns: int | None
    errors: Mapping[str, int]
    problem: str


class Reason(StrEnum):
    """The kinds that are counted apart."""

    CONNECT = "connect"  # no such host, nobody listens, the connection broke
    TLS = "tls"
    TIMEOUT = "timeout"
    STATUS = "status"  # an HTTP status other than 200
    REDIRECT = "redirect"  # never followed: it could lead anywhere
    TOO_BIG = "too-big"
    FORMAT = "format"  # not what was expected, or not a number
    EMPTY = "empty"  # no such series or field
    AMBIGUOUS = "ambiguous"  # more than one
    SECRET = "secret"  # noqa: S105 - a token or header file cannot be read
    FORBIDDEN = "forbidden"  # a push by somebody who may not
    UNKNOWN = "unknown"  # a push for a service that does not push
    INTERNAL = "internal"  # a bug of ours


class SourceError(Exception):
    """A source gave no figure; the message says why, in one line."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


_log = logging.getLogger(__name__)

# As the configuration calls them.
_KINDS = {PrometheusQuery: "prometheus", MetricLine: "metrics", JsonField: "json", Push: "push"}


class _Answer(NamedTuple):
    value: float | None
    time_ns: int


class Ledger:
    """The account of *source*."""

    def __init__(self, source: ServiceSource) -> None:
        self.source = source
        self._answer: _Answer | None = None
        self._errors = dict.fromkeys(map(str, Reason), 0)
        self._problem = ""

    def answered(self, figure: float, now_ns: int) -> None:
        """Take *figure* in the source's unit; NaN: the service had nothing to do."""
        value = None if math.isnan(figure) else figure * (self.source.unit_ns or 1)
        # The answer last: who sees it in another thread finds the problem gone, and in the log.
        if self._problem:
            _log.info("service level of %s: answers again", self.source.service)
        self._problem = ""
        self._answer = _Answer(value, now_ns)

    def count(self, reason: Reason) -> None:
        """Count a failure, and nothing else."""
        self._errors[reason] += 1

    def failed(self, error: SourceError) -> None:
        """Count *error* and keep it as the problem; only a new one is logged."""
        if self._problem != str(error):
            _log.warning("service level of %s: %s", self.source.service, error)
        self._problem = str(error)
        self.count(error.reason)

    def reading(self, now_ns: int) -> ServiceReading:
        """Return the answer if it is young enough; see ``ServiceReading``."""
        answer = self._answer
        if answer is None or now_ns - answer.time_ns > self.source.max_age_ns:
            return ServiceReading(self.source.service, None, None)
        return ServiceReading(self.source.service, answer.value, max(0, now_ns - answer.time_ns))

    def state(self, now_ns: int) -> ServiceState:
        """Return everything there is to tell; the age also of an answer that is too old."""
        answer, reading = self._answer, self.reading(now_ns)
        problem = self._problem
        if not problem and answer is not None and reading.age_ns is None:
            problem = f"no news for more than {format_duration(self.source.max_age_ns)}"
        return ServiceState(
            service=self.source.service,
            kind=_KINDS[type(self.source.source)],
            value=reading.value,
            is_time=self.source.unit_ns is not None,
            age_ns=None if answer is None else max(0, now_ns - answer.time_ns),
            errors=self._errors.copy(),
            problem=problem,
        )
