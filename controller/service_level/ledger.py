# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is known of one source: its last answer, and what went wrong.

Written by the thread of the sources, read by others. Every field is replaced as a whole or
keeps its size, so a reader never sees half of a change.
"""

import logging
import math
from typing import NamedTuple

from controller.configsections.service_level import (
    JsonField,
    MetricLine,
    PrometheusQuery,
    Push,
    ServiceSource,
)
from controller.model import ServiceReading
from controller.report import ServiceState
from controller.service_level.failure import Reason, SourceError
from controller.units import format_duration

__all__ = ("Ledger",)

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
