# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The node as the agent sees it: who runs here, what they suffer, where the knobs stand."""

from collections.abc import Mapping
from dataclasses import replace
import logging
import time

from actuators import registry
from actuators.base import RestoreReport
from actuators.core_scheduling.cookie import CoreCookie
from actuators.executor import Executor
from actuators.journal import Journal
from controller.agent.eviction import EvictionDispatcher
from controller.agent.knob_poller import KnobPoller
from controller.agent.sampler import Sampler
from controller.config.load import Config
from controller.core.control.eviction_policy import EvictionHistory
from controller.core.decision import Outcome, Plan
from controller.core.model import (
    SERVICE_KNOBS,
    CgroupId,
    Knob,
    KnobReading,
    Mode,
    QosClass,
    Snapshot,
    Target,
    TargetKind,
    Workload,
)
from controller.core.workload_index import diff_workloads
from controller.host.facts import find_cgroup_layout, find_disks, memory_bytes
from controller.kube.cleanup import remove_taint_note, write_taint_note
from controller.kube.cluster import Cluster
from controller.probes.service_level.collector import ServiceLevels
from controller.reconcilers.core_scheduling import CoreScheduling
from controller.reconcilers.host_eviction import HostEvictions
from controller.reconcilers.network.links import ShapedLinks
from controller.reconcilers.network.pod_limits import POD_LIMITS, is_limited, unkept
from controller.reconcilers.resctrl.control_group import ControlGroup
from controller.reconcilers.resctrl.monitor import ResctrlMonitor
from controller.workloads import static
from controller.workloads.sched_idle import SchedIdlePlacer

__all__ = ("Node",)

_log = logging.getLogger(__name__)

_KNOBS = frozenset(Knob)


class Node:
    """Probes, workloads and knobs of this host, for the control thread alone.

    ``enforcing`` tells whether knobs are written.

    :raises ConfigError: what the configuration says about this host's cgroups is wrong.
    :raises HostError: no cgroup hierarchy with the cpu controller.
    :raises JournalError: the journal directory cannot be used.
    """

    def __init__(self, config: Config) -> None:
        self._layout = find_cgroup_layout()
        self._idle = SchedIdlePlacer(self._layout)
        workloads = static.scan(self._layout, config.workloads, missing_ok=False)
        cookies = CoreCookie(config.state_dir)
        self.enforcing = config.settings.mode is Mode.ENFORCE
        self.links = None if config.network is None else ShapedLinks(config.network, self._layout)
        programs = None if self.links is None else self.links.programs
        self._executor = Executor(
            Journal(config.state_dir / "journal"), registry.build(self._layout, cookies, programs)
        )
        self.resctrl = ControlGroup(config.resctrl, self._executor, self._layout)
        self._readings = KnobPoller(self._executor)
        monitor = ResctrlMonitor(config.resctrl, self._executor, self._layout)
        self.sampler = Sampler(self._layout, config.counters, monitor)
        self.cores = CoreScheduling(self._layout, cookies, self.sampler.sched)
        self.cores.reconfigure(config.settings.core)
        self.services = ServiceLevels(config.service_level)
        self._unkept: Mapping[str, str] = {}
        self._burst_profiles: frozenset[str] = frozenset()
        self._left: frozenset[Knob] = frozenset()
        self._ours = _KNOBS
        self.workloads: tuple[Workload, ...] = ()
        self._best_effort: dict[CgroupId, Target] = {}  # their own cgroups
        self._limited = 0
        self._scanned_at: int | None = None
        if self.resctrl.facts is not None:
            self.sampler.load_moves()
        self.set_workloads(self._idle.place(workloads, time.monotonic_ns()))
        # Last: it has threads, and what loads the probes is forked off.
        kubernetes = config.kubernetes
        self.cluster = (
            None
            if kubernetes is None
            else Cluster(kubernetes, self._layout, lambda: self.sampler.cgroup_changes)
        )
        self._state_dir = config.state_dir
        if kubernetes is not None:
            write_taint_note(config.state_dir, kubernetes.node, kubernetes.kubeconfig)
        self._evictions = EvictionDispatcher(
            HostEvictions(config.eviction, self._layout, self._executor),
            None if self.cluster is None else self.cluster.evictions,
            config.state_dir,
        )

    def complete(self, config: Config) -> Config:
        """Return *config* with what this host was found to have; measure what it wants.

        To the profiles of *config*, which are those of files, a cluster's are added.
        """
        if self.cluster is not None:
            config = replace(config, settings=self.cluster.with_profiles(config.settings))
        self.cores.reconfigure(config.settings.core)
        profiles = config.settings.profiles.values()
        self._burst_profiles = frozenset(p.name for p in profiles if p.cpu_burst_us)
        links = () if self.links is None else self.links.facts
        host = replace(config.settings.host, links=links, resctrl=self.resctrl.facts)
        host = replace(host, memory_bytes=memory_bytes(), disks=find_disks(config.disks))
        return replace(config, settings=replace(config.settings, host=host))

    @property
    def knobs(self) -> tuple[KnobReading, ...]:
        """Every knob that we may move, as last read back."""
        return self._readings.all

    @property
    def overwritten(self) -> Mapping[Knob, int]:
        """How often somebody else replaced a value of ours, by knob."""
        return self._executor.overwritten

    @property
    def link_problems(self) -> Mapping[str, str]:
        """Why a link is not shaped, by its name; or limits of pods are not kept: ``pod_limits``."""
        return self._unkept if self.links is None else self.links.problems

    def has_changed(self) -> bool:
        """Whether cgroups came or went since the last ``scan``, as far as anybody tells.

        Of pods also what the API server says of them may change, so they are asked for always.
        """
        changes = self.sampler.cgroup_changes
        return changes is None or self.cluster is not None or changes != self._scanned_at

    def scan(self, config: Config) -> tuple[Workload, ...]:
        """Return who is here now by the rules of *config*; ``take`` makes it so.

        :raises ConfigError: two rules claim one cgroup, or one workload lies in another.
        """
        now_ns = time.monotonic_ns()
        self._scanned_at = self.sampler.cgroup_changes
        workloads = static.scan(self._layout, config.workloads, missing_ok=True)
        if self.cluster is not None:
            workloads = self.cluster.scan(workloads, config.settings.profiles, now_ns)
        return self._idle.place(workloads, now_ns)

    def set_workloads(self, workloads: tuple[Workload, ...]) -> None:
        """Count for *workloads* from now on, and for nobody else."""
        change = diff_workloads(self.workloads, workloads)
        self._limited += sum(map(is_limited, change.added)) - sum(map(is_limited, change.removed))
        for each in change.of_class(QosClass.BE).removed:
            del self._best_effort[each.cgroup]
        self._best_effort |= {w.cgroup: _own_target(w) for w in change.of_class(QosClass.BE).added}
        self.workloads = workloads
        self.sampler.set_workloads(workloads)
        self.resctrl.set_workloads(workloads)
        if self.links is not None:
            self.links.set_workloads(workloads)
        elif text := unkept(self._limited, 0, shaped=False):
            if not self._unkept:
                _log.warning("%s", text)
            self._unkept = {POD_LIMITS: text}
        else:
            self._unkept = {}
        self.cores.set_workloads(workloads)

    def audit(self) -> None:
        """Look whose knobs we may move or have moved; who else writes one is seen within a round.

        What is new is read at once, the rest in turn, a few with every ``measure``.
        """
        self._leave_knobs()
        targets = list(self._best_effort.values())
        idle_at = {w.idle_at for w in self.workloads if w.idle_at is not None}
        targets += sorted(idle_at)
        # A workload that the configuration no longer names must still be given back its knobs.
        held = (t for t in self._executor.held() if t.kind is not TargetKind.VETH)
        links = () if self.links is None else self.links.targets
        groups = self.resctrl.targets(enforcing=self.enforcing)
        every = (*targets, *links, *groups, *self.cores.targets, *held)
        pretended = () if self.links is None or self.enforcing else self.links.unlimited()
        wanted = dict.fromkeys(self._bursting(), SERVICE_KNOBS - self._left)
        wanted |= dict.fromkeys(every, self._ours)
        self._readings.set_targets(wanted, pretended)

    def _leave_knobs(self) -> None:
        """Give back what is found to be another agent's; without a reading nothing is planned."""
        if self.cluster is None:
            return
        before = self._left
        self._left = self.cluster.ceded_knobs(self._executor.holds, time.monotonic_ns())
        if self._left != before:
            self._ours = _KNOBS - self._left
        if new := self._left - before:
            _log_report(self._executor.restore_all(new))
            if Knob.RESCTRL_GROUP in new:
                self.resctrl.reset()

    def _bursting(self) -> list[Target]:
        # The services that may save up quota; no other knob of theirs is ours.
        if not self._burst_profiles:
            return []
        return [
            _own_target(w)
            for w in self.workloads
            if w.qos is QosClass.LS and w.profile in self._burst_profiles
        ]

    def poll(self) -> Snapshot:
        """Read the probes and return everything known at this instant."""
        if self.cluster is not None:
            self.cluster.check()
        measured = self.sampler.poll()
        self._readings.poll(measured.time_ns)
        return replace(
            measured,
            knobs=self.knobs,
            services=self.services.poll(measured.time_ns),
            links=() if self.links is None else self.links.samples(),
            core_overlap_ratio=self.cores.overlap(measured.time_ns),
            evictions=self._evictions.answers(),
        )

    def execute(self, plan: Plan) -> tuple[Outcome, ...]:
        """Write what *plan* says and keep what was read back."""
        now_ns = time.monotonic_ns()
        if self.cores.engaged:
            self.sampler.load_moves()
        moves = self.sampler.moves()
        resctrl_is_ours = Knob.RESCTRL_GROUP not in self._left
        new_group = resctrl_is_ours and self.resctrl.reconcile(now_ns, moves)
        if (self.links is not None and self.links.reconcile(self._executor, now_ns)) or new_group:
            self.audit()
        outcomes = self._executor.execute(plan.actions, now_ns=time.monotonic_ns())
        self._readings.update(outcomes)
        self.cores.reconcile(now_ns, moves)
        return outcomes

    @property
    def eviction_history(self) -> EvictionHistory:
        """What the next planner has to know of evictions, those of earlier runs included."""
        return self._evictions.history

    def dispatch(self, snapshot: Snapshot, plan: Plan, past: EvictionHistory) -> None:
        """Evict whom *plan* says, and tell the cluster of what it does; also while observing.

        *past* is what there is to know of evictions after this plan.
        """
        now_ns = time.monotonic_ns()
        self._evictions.dispatch(
            plan, past, self.workloads, enforcing=self.enforcing, now_ns=now_ns
        )
        if self.cluster is not None:
            mode = Mode.ENFORCE if self.enforcing else Mode.OBSERVE
            self.cluster.update(snapshot, plan, self.workloads, mode)

    def restore(self) -> RestoreReport:
        """Put every knob back."""
        report = self._executor.restore_all()
        self._readings.reset()
        self._evictions.reset()
        self.resctrl.reset()
        self.sampler.monitor.reset()
        if self.links is not None:
            self.links.reset()
        _log_report(report)
        return report

    def close(self) -> None:
        """Detach the probes; knobs stay, see ``restore``."""
        for opened in (self.cores, self.services, self.sampler, self.links, self.cluster):
            if opened is not None:
                opened.close()
        if self.cluster is not None and not self.cluster.may_have_left_objects:
            remove_taint_note(self._state_dir)


def _own_target(workload: Workload) -> Target:
    return Target(TargetKind.CGROUP, *workload.cgroup, workload.path)


def _log_report(report: RestoreReport) -> None:
    for result in report.results:
        _log.info("%s: %s: %s", result.subject, result.result, result.message)
