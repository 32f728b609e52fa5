# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Scans of this host for workloads: those of the configuration, and the pods of the cluster.

A scan finds, bounds what is taken in at once, and places the knobs that are set above a workload.
"""

from collections.abc import Mapping
import logging
import time
from typing import TYPE_CHECKING

from controller.config.load import Config
from controller.core.model import CgroupId, QosClass, Workload
from controller.host.facts import CgroupLayout
from controller.host.memory import find_memory
from controller.kube.client.rate_limit import RateLimitedLogger
from controller.workloads.intake import Intake
from controller.workloads.knob_placement import KnobPlacer
from controller.workloads.static import ConfiguredWorkloads

if TYPE_CHECKING:
    from controller.kube.cluster import Cluster

__all__ = ("WorkloadScanner",)

_log = logging.getLogger(__name__)


class WorkloadScanner:
    """Finds the workloads in the cgroups of *layout*.

    As of the last scan, ``left_out`` has a text for each cgroup that a rule of the configuration
    matches and that cannot be a workload, ``missing`` one for each that a rule names and that does
    not exist. Each is logged when it is new.
    """

    def __init__(self, layout: CgroupLayout) -> None:
        self._configured = ConfiguredWorkloads(layout)
        self._intake = Intake()
        self._placer = KnobPlacer(layout, find_memory(layout.unified))
        self._log = RateLimitedLogger(_log)
        self._changes_at_scan: int | None = None
        self.left_out: tuple[str, ...] = ()
        self.missing: tuple[str, ...] = ()

    def first(self, config: Config) -> tuple[Workload, ...]:
        """Return the workloads of the configuration alone."""
        workloads = self._find(config)
        self._intake.update(workloads)
        return self._placer.place(workloads, time.monotonic_ns())

    def scan(
        self, config: Config, cluster: "Cluster | None", changes: int | None
    ) -> tuple[Workload, ...]:
        """Return the workloads by the rules of *config* and of *cluster*, without those that wait.

        *changes* is the number of cgroups that were made or removed so far, see ``has_changed``.
        """
        now_ns = time.monotonic_ns()
        self._changes_at_scan = changes
        workloads = self._find(config)
        self._intake.update(workloads)
        if cluster is not None:
            workloads = cluster.scan(
                workloads,
                config.settings.profiles,
                now_ns,
                config.replace_profiles,
                (config.resctrl.classes, config.io_classes),
            )
        # Those that wait are placed as well: their tasks are not foreign to best-effort work.
        workloads = self._placer.place(workloads, now_ns)
        waiting = self.waiting
        if waiting:
            workloads = tuple(each for each in workloads if each.cgroup not in waiting)
        return workloads

    def has_changed(self, changes: int | None) -> bool:
        """Return whether the workloads of a plain host may be others than at the last ``scan``.

        Always true where *changes* is ``None`` (not counted), and while workloads wait.
        """
        return changes is None or bool(self.waiting) or changes != self._changes_at_scan

    @property
    def waiting(self) -> Mapping[CgroupId, Workload]:
        """The workloads that wait for a later scan."""
        return self._intake.waiting

    @property
    def waiting_counts(self) -> Mapping[QosClass, int]:
        """The number of workloads that wait for a later scan, by class."""
        return self._intake.counts

    def _find(self, config: Config) -> tuple[Workload, ...]:
        workloads, left_out, missing = self._configured.scan(config.workloads)
        logged = frozenset((*self.left_out, *self.missing))
        for text in left_out:
            if text not in logged:
                self._log.warning(f"{text}; left out")
        for text in missing:
            if text not in logged:
                self._log.warning(f"{text}; left out until it does")
        self.left_out, self.missing = left_out, missing
        return workloads
