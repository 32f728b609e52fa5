# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The state of one service-level source: last answer, last problem, error counts by reason.

A ledger is written by the thread of the sources and read by other threads without a lock: every
field is replaced as a whole or keeps its size, so a reader never sees half of a change.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
import logging
import math
from typing import NamedTuple

from controller.config.sections.service_sources import (
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
    "base_value",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """The source of a service's own figure, as reported in /statusz and /metrics.

    ``kind`` is prometheus, metrics, json, push or pods. ``value`` is in ns if ``is_time``; ``None``
    if there is no answer, the service was idle, or the last answer is too old. ``age_ns`` is the
    age of the last answer. ``problem`` is empty while the source works.
    """

    service: str
    kind: str
    value: float | None
    is_time: bool
    age_ns: int | None
    errors: Mapping[str, int]
    problem: str

    def joined(self, other: "ServiceState") -> "ServiceState":
        """Return the state of two pods together: the larger figure, and the first problem."""
        worst = max(self, other, key=lambda each: -math.inf if each.value is None else each.value)
        ages = [each for each in (self.age_ns, other.age_ns) if each is not None]
        return replace(
            worst,
            age_ns=max(ages, default=None),
            errors={key: count + other.errors[key] for key, count in self.errors.items()},
            problem=self.problem or other.problem,
        )


class Reason(StrEnum):
    """Kinds of failure, counted separately."""

    CONNECT = "connect"  # unknown host, refused or broken connection
    TLS = "tls"
    TIMEOUT = "timeout"
    STATUS = "status"  # an HTTP status other than 200
    REDIRECT = "redirect"  # never followed: it could lead anywhere
    TOO_BIG = "too-big"
    FORMAT = "format"  # unexpected syntax, or not a number
    EMPTY = "empty"  # no such series or field
    AMBIGUOUS = "ambiguous"  # more than one
    SECRET = "secret"  # noqa: S105 - a token or header file cannot be read
    FORBIDDEN = "forbidden"  # a push by a user that is not configured for the service
    UNKNOWN = "unknown"  # a push for a service that does not push
    INTERNAL = "internal"  # a bug in this program


class SourceError(Exception):
    """A source gave no figure; the message gives the cause in one line."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


_log = logging.getLogger(__name__)

# As the configuration calls them.
_KINDS = {PrometheusQuery: "prometheus", MetricLine: "metrics", JsonField: "json", Push: "push"}


def base_value(source: ServiceSource, figure: float) -> float | None:
    """Return *figure* of *source*, in ns if it is a time; ``None`` if it is NaN.

    :raises SourceError: the time is negative, or the figure too large for a floating-point number.
    """
    if math.isnan(figure):
        return None
    value = figure if source.unit_ns is None else figure * source.unit_ns
    # A negative time would count as an excellent one, so an error must not pass as that.
    if math.isinf(value) or (source.unit_ns is not None and value < 0):
        kind = "finite number" if source.unit_ns is None else "time in the unit of the source"
        raise SourceError(Reason.FORMAT, f"{figure:g} is no {kind}")
    return value


class _Answer(NamedTuple):
    value: float | None
    time_ns: int


class Ledger:
    """The state of *source*; ``answers`` counts the figures so far, and each calls *on_figure*.

    A figure older than ``max_age_ns`` is not used: that of the source, or more where it is asked
    less often than it says.
    """

    def __init__(self, source: ServiceSource, on_figure: Callable[[], None] = lambda: None) -> None:
        self.source = source
        self._on_figure = on_figure
        self._answer: _Answer | None = None
        self._errors = dict.fromkeys(map(str, Reason), 0)
        self._problem = ""
        self.answers = 0
        self.max_age_ns = source.max_age_ns

    def answered(self, figure: float, now_ns: int) -> None:
        """Record *figure*, in the source's unit; NaN means that the service was idle.

        :raises SourceError: see ``base_value``.
        """
        value = base_value(self.source, figure)
        # The answer is set last: a thread that reads it sees that the problem is gone and logged.
        if self._problem:
            _log.info("service level of %s: answers again", self.source.place)
        self._problem = ""
        self._answer = _Answer(value, now_ns)
        self.answers += 1
        self._on_figure()

    def count(self, reason: Reason) -> None:
        """Count a failure without recording it as the current problem."""
        self._errors[reason] += 1

    def failed(self, error: SourceError) -> None:
        """Count *error* and record it as the current problem; it is logged only if it changed."""
        if self._problem != str(error):
            _log.warning("service level of %s: %s", self.source.place, error)
        self._problem = str(error)
        self.count(error.reason)

    def reading(self, now_ns: int) -> ServiceReading:
        """Return the last answer unless it is older than ``max_age_ns``; see ``ServiceReading``."""
        answer = self._answer
        if answer is None or now_ns - answer.time_ns > self.max_age_ns:
            return ServiceReading(self.source.service, None, None)
        return ServiceReading(self.source.service, answer.value, max(0, now_ns - answer.time_ns))

    def state(self, now_ns: int) -> ServiceState:
        """Return the full state; the age is given even if the answer is too old to be used."""
        answer, reading = self._answer, self.reading(now_ns)
        problem = self._problem
        if not problem and answer is not None and reading.age_ns is None:
            problem = f"no answer for more than {format_duration(self.max_age_ns)}"
        return ServiceState(
            service=self.source.service,
            kind="pods" if self.source.is_pod else _KINDS[type(self.source.source)],
            value=reading.value,
            is_time=self.source.unit_ns is not None,
            age_ns=None if answer is None else max(0, now_ns - answer.time_ns),
            errors=self._errors.copy(),
            problem=problem,
        )
