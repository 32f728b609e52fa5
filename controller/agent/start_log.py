# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The lines of the log at the start: mode, period, and how many workloads there are.

In a cluster the workloads are not known before the API server has given the list of pods, seconds
after the start. Until then they are not counted: "0 latency-sensitive" would read like a mistake in
the configuration.
"""

from collections.abc import Iterable
import logging

from controller.core.model import QosClass, Workload
from controller.core.settings import Settings
from controller.core.units import format_duration

__all__ = ("StartLog",)

_log = logging.getLogger(__name__)


class StartLog:
    """Logs what an agent begins with, in one line, or in two where pods are known later."""

    def __init__(self) -> None:
        self._counted = False

    def begin(self, settings: Settings, workloads: Iterable[Workload], *, pods_known: bool) -> None:
        """Log *settings*, and the number of *workloads* if it is that of all."""
        self._counted = pods_known
        what = _counts(workloads) if pods_known else "the pods of this node are not known yet"
        _log.info("%s every %s: %s", settings.mode, format_duration(settings.tick_ns), what)

    def poll(self, workloads: Iterable[Workload], *, pods_known: bool) -> None:
        """Log the number of *workloads* when the pods are known; once."""
        if pods_known and not self._counted:
            self._counted = True
            _log.info("the pods of this node are known: %s", _counts(workloads))


def _counts(workloads: Iterable[Workload]) -> str:
    classes = [each.qos for each in workloads]
    counts = (f"{classes.count(qos)} {qos}" for qos in (QosClass.LS, QosClass.BE, QosClass.SYSTEM))
    return f"{', '.join(counts)} workloads"
