# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the agent writes on this host: the actions of plans, and what the reconcilers keep.

A tick reads a part of the knobs (``poll``) and writes the actions of its plan (``execute``).
Everything written is in the journal, and ``restore`` undoes all of it.
"""

from collections.abc import Mapping
import logging
import time
from typing import TYPE_CHECKING

from actuators.base import PENDING, RestoreReport
from actuators.executor import Executor
from actuators.oom_order import OOM
from controller.agent.knob_poller import KnobPoller
from controller.agent.knob_targets import KnobTargets
from controller.agent.sampler import Sampler
from controller.core.decision import Outcome, Plan
from controller.core.model import CgroupId, Knob, KnobReading, TargetKind, Workload
from controller.core.settings import Settings
from controller.core.units import NS_PER_SEC
from controller.core.writes.io_classes import IoClassState, io_class_states
from controller.probes.cgroup_moves import Move
from controller.reconcilers.core_scheduling import CoreScheduling
from controller.reconcilers.io_cost import IoCostReconciler
from controller.reconcilers.oom_order import OomReconciler
from controller.reconcilers.resctrl.control_group import ControlGroups
from controller.workloads.changes import WorkloadDiff

if TYPE_CHECKING:
    from controller.reconcilers.network.links import ShapedLinks

__all__ = ("KnobWriter",)

_log = logging.getLogger(__name__)

# A restore that the kernel refused is tried for up to a second, and again after this.
_RELEASE_AGAIN_NS = 10 * NS_PER_SEC
# What is held in observe mode too: measuring needs it.
_MEASURING = frozenset({Knob.RESCTRL_MOUNT, Knob.RESCTRL_MONITOR})


class KnobWriter:
    """Writes, reads back and restores knobs, by *executor* and the reconcilers.

    ``enforcing``: whether knobs are written (enforce mode). ``released``: the last plan had every
    knob restored, and none is held since. ``io_classes``: their state at the last
    ``refresh_targets``.
    """

    def __init__(
        self,
        executor: Executor,
        sampler: Sampler,
        *,
        resctrl: ControlGroups,
        links: "ShapedLinks | None",
        cores: CoreScheduling,
        oom: OomReconciler,
        io_cost: IoCostReconciler,
        enforcing: bool,
    ) -> None:
        self._executor, self._sampler = executor, sampler
        self._resctrl, self._links, self._cores, self._oom = resctrl, links, cores, oom
        self._io_cost = io_cost
        self.enforcing = enforcing
        self._poller = KnobPoller(executor)
        self._targets = KnobTargets()
        self._settings: Settings | None = None
        self._workloads: tuple[Workload, ...] = ()
        self.io_classes: tuple[IoClassState, ...] = ()
        self._released_ns: int | None = None
        self._left_ns = 0  # when a refused restore was last repeated

    @property
    def released(self) -> bool:
        return self._released_ns is not None

    @property
    def readings(self) -> tuple[KnobReading, ...]:
        """The last readings of all knobs that the agent may write or has written."""
        return self._poller.all

    @property
    def has_unread(self) -> bool:
        """Whether knobs wait for their first reading."""
        return self._poller.has_unread

    @property
    def overwritten(self) -> Mapping[Knob, int]:
        """How often a foreign value replaced one that the agent had written, by knob."""
        return self._executor.overwritten

    @property
    def routine(self) -> Mapping[Knob, int]:
        """How often a routine of kubelet or systemd undid a value of the agent, by knob."""
        return self._executor.routine

    def reconfigure(self, settings: Settings) -> None:
        """Take which knobs the profiles and classes of *settings* set on services."""
        self._settings = settings
        self._targets.reconfigure(settings)

    def set_workloads(self, workloads: tuple[Workload, ...], change: WorkloadDiff) -> None:
        """Take *workloads*, which differ from those before by *change*."""
        self._workloads = workloads
        self._targets.set_workloads(workloads, change)

    def isolate(self) -> None:
        """Read cpuset.cpus too from now on, at once."""
        if not self._targets.isolates:
            self._targets.isolate()
            self.refresh_targets()

    def poll(self, time_ns: int) -> None:
        """Read a part of the knobs, for the tick of *time_ns*."""
        self._poller.poll(time_ns)

    def refresh_targets(self) -> None:
        """Renew the list of knobs to read back: those the agent may write or has written.

        All are read a few at a time in ``poll``, new ones first. Foreign values are noticed by
        these readings.
        """
        self._restore_refused()
        # Knobs of workloads that the configuration no longer names must still be restored.
        held = (
            target
            for target in self._executor.held()
            if target.kind not in (TargetKind.VETH, TargetKind.DISK)
            and target.scope != OOM
            and not self._resctrl.is_of_class(target)
        )
        links = () if self._links is None else self._links.targets
        groups = self._resctrl.targets(enforcing=self.enforcing)
        assumed = () if self._links is None or self.enforcing else self._links.unlimited()
        wanted = self._targets.select((*links, *groups, *self._cores.targets, *held))
        self._poller.set_targets(wanted, assumed)
        if self._settings is not None:
            self.io_classes = io_class_states(self._settings, self._workloads, self._poller.all)

    def holds(self, cgroup: CgroupId, knob: Knob) -> bool:
        """Return whether *knob* of *cgroup* has a value of the agent."""
        return self._executor.holds(cgroup, knob)

    def cede(self, ceded: frozenset[Knob]) -> None:
        """Restore the knobs that belong to another agent of this node, and stop reading them."""
        if new := self._targets.cede(ceded):
            _log_report(self._executor.restore_all(new))
            if Knob.RESCTRL_GROUP in new:
                self._resctrl.reset()

    def _restore_refused(self) -> None:
        """Restore again what was not to be held any more, and the kernel refused to restore."""
        knobs = self._targets.ceded if self.enforcing else frozenset(Knob) - _MEASURING
        now_ns = time.monotonic_ns()
        if self._executor.holds_any(knobs) and now_ns - self._left_ns >= _RELEASE_AGAIN_NS:
            self._left_ns = now_ns
            report = self._executor.restore_all(knobs)
            done = (each for each in report.results if each.result not in PENDING)
            _log_report(RestoreReport(results=tuple(done)))  # the others were logged before

    def execute(self, plan: Plan, first_moves: tuple[Move, ...]) -> tuple[Outcome, ...]:
        """Write the actions of *plan* and run the reconcilers; return what was read back.

        The reconcilers of links and of resctrl groups run first, because actions of *plan* write
        to the objects that they make. *first_moves* are tasks that are about to run.
        """
        now_ns = time.monotonic_ns()
        if plan.released:
            return self._release(plan, now_ns)
        self._released_ns = None
        if self._cores.engaged:
            self._sampler.load_moves()
        moves = self._sampler.moves()
        resctrl_owned = Knob.RESCTRL_GROUP not in self._targets.ceded
        new = resctrl_owned and self._resctrl.reconcile(now_ns, moves, first_moves)
        if (self._links is not None and self._links.reconcile(self._executor, now_ns)) or new:
            self.refresh_targets()
        outcomes = self._executor.execute(plan.actions, now_ns=time.monotonic_ns())
        self._poller.update(outcomes)
        self._cores.reconcile(now_ns, moves, first_moves)
        self._oom.reconcile(now_ns, self._sampler.ran)
        self._io_cost.reconcile(now_ns)
        return outcomes

    def _release(self, plan: Plan, now_ns: int) -> tuple[Outcome, ...]:
        """Write the actions of *plan* and undo everything else; no reconciler runs."""
        outcomes = self._executor.execute(plan.actions, now_ns=now_ns)
        self._poller.update(outcomes)
        if self._released_ns is None:
            self._released_ns = now_ns
            self.restore()
        elif now_ns - self._released_ns >= _RELEASE_AGAIN_NS:
            self._released_ns = now_ns
            # A pause goes on measuring: the groups for that were made again after the restore.
            knobs = frozenset(Knob) - _MEASURING
            if self._executor.holds_any(knobs):
                _log_report(self._executor.restore_all(knobs))
        return outcomes

    def restore(self) -> RestoreReport:
        """Restore every knob and forget its reading, log the results and return them."""
        report = self._executor.restore_all()
        self._poller.reset()
        self._resctrl.reset()
        self._oom.reset()
        self._io_cost.reset()
        self._sampler.monitor.reset()
        if self._links is not None:
            self._links.reset()
        _log_report(report)
        return report


def _log_report(report: RestoreReport) -> None:
    for result in report.results:
        _log.info("%s: %s: %s", result.subject, result.result, result.message)
