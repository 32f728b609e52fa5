# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""This host as the control loop uses it: workloads, probes, knobs, reconcilers, cluster.

``Node`` owns every object of the agent that touches the host or the network. In a tick the agent
calls ``poll`` (read everything into a ``Snapshot``), ``execute`` (write the actions of the plan)
and ``dispatch`` (evictions and the cluster). ``ConfigFollower`` calls ``scan`` and
``set_workloads`` when workloads change, and ``complete``, ``scan`` and ``reconfigure`` when the
configuration does.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
import logging
import time
from typing import TYPE_CHECKING

from actuators import registry
from actuators.base import RestoreReport
from actuators.core_scheduling.cookie import CoreCookie
from actuators.executor import Executor
from actuators.journal import Journal
from actuators.oom_order import OomOrder
from actuators.tasks import members
from controller.agent.eviction import EvictionDispatcher
from controller.agent.io_classes import resolve_io_classes
from controller.agent.knob_targets import target_of
from controller.agent.knob_writer import KnobWriter
from controller.agent.sampler import Sampler
from controller.agent.workload_scanner import WorkloadScanner
from controller.config.load import Config
from controller.core.decision import Outcome, Plan
from controller.core.eviction.budget import EvictionHistory
from controller.core.in_force import InForce
from controller.core.memory import margin_bytes
from controller.core.model import (
    Knob,
    Mode,
    Pause,
    QosClass,
    Snapshot,
    Workload,
)
from controller.core.settings import Settings
from controller.core.workload_index import unpaused
from controller.host.disks import find_disks, may_enable_iocost, weighted_disks
from controller.host.exclusive_cpus import SharedCpus
from controller.host.facts import cpu_model, find_cgroup_layout, memory_bytes
from controller.host.memory import find_memory, high_watermark_bytes
from controller.host.sources import Source
from controller.host.state_dir import JOURNAL
from controller.host.store import Store
from controller.probes.bpf.loader import use_cache
from controller.probes.cgroup_moves import Move
from controller.probes.memory_use import MemoryMeter
from controller.probes.service_level.collector import ServiceLevels
from controller.reconcilers.core_scheduling import CoreScheduling
from controller.reconcilers.host_eviction import HostEvictions
from controller.reconcilers.io_cost import IoCostReconciler
from controller.reconcilers.network.pod_limits import POD_LIMITS, is_limited, unkept
from controller.reconcilers.oom_order import OomReconciler
from controller.reconcilers.resctrl.control_group import ControlGroups
from controller.reconcilers.resctrl.monitor import ResctrlMonitor
from controller.workloads.changes import diff_workloads
from controller.workloads.pods.pod import RuntimePod

if TYPE_CHECKING:
    from controller.kube.cluster import Cluster
    from controller.kube.state import ClusterState
    from controller.reconcilers.network.links import ShapedLinks

__all__ = ("Node",)

_log = logging.getLogger(__name__)

# With so many margins available or less the memory guard looks at memory in each tick.
_SHORT_MARGINS = 2


class Node:
    """Probes, workloads and knobs of this host. Not thread-safe: for the control thread only.

    ``knobs``: what is written. ``workloads``: the ones measured and steered now. ``journals``: the
    records of what is held.

    :param store: where the cluster's part keeps what outlives a boot.
    :param runtime_pods: see ``KubernetesSource``.
    :raises HostError: no cgroup hierarchy with the cpu controller is mounted.
    :raises JournalError: the journal directory cannot be used.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        runtime_pods: Callable[[], Mapping[str, RuntimePod]] = dict,
    ) -> None:
        self._layout = find_cgroup_layout()
        use_cache(config.state_dir / "programs")
        self._scanner = WorkloadScanner(self._layout)
        workloads = self._scanner.first(config)
        cookies = CoreCookie(config.state_dir)
        self.links = self._make_links(config)
        programs = None if self.links is None else self.links.programs
        journal = Journal(config.state_dir / JOURNAL)
        oom_order = OomOrder(self._layout, config.state_dir)
        self.journals = journal, cookies.registry, oom_order
        actuators = registry.build(self._layout, cookies, oom_order, programs)
        executor = Executor(journal, actuators)
        self.resctrl = ControlGroups(config.resctrl, executor, self._layout)
        monitor = ResctrlMonitor(config.resctrl, executor, self._layout)
        follows = self.resctrl.has_class
        self.sampler = Sampler(self._layout, config.counters, monitor, follows)
        self._memory = MemoryMeter(find_memory(self._layout.unified))
        self.oom = OomReconciler(executor, oom_order)
        self._io_cost = IoCostReconciler(executor, self._layout)
        self.cores = CoreScheduling(self._layout, cookies, self.sampler.sched)
        self.services = ServiceLevels(config.service_level)
        self._own_link_problems: Mapping[str, str] = {}
        self.knobs = KnobWriter(
            executor,
            self.sampler,
            resctrl=self.resctrl,
            links=self.links,
            cores=self.cores,
            oom=self.oom,
            io_cost=self._io_cost,
            enforcing=config.settings.mode is Mode.ENFORCE,
        )
        follows_kubelet = config.kubernetes is not None and config.kubernetes.static_isolation
        # The kernel of v1 would refuse the sets that kubelet and runc write.
        isolates = follows_kubelet and self._layout.version == "v2"
        self._shared_cpus = SharedCpus() if isolates else None
        self.workloads: tuple[Workload, ...] = ()
        self._pause: Pause | None = None
        self._steered: tuple[Workload, ...] = ()  # paused ones as system workloads
        # Number of workloads with network limits of their own.
        self._limited = 0
        if self.resctrl.moves_tasks:
            self.sampler.load_moves()
        self.set_workloads(workloads)
        # Last, because the cluster has threads and the probes are loaded in forked children.
        self._state_dir = config.state_dir
        self._write_note: Callable[[], None] = lambda: None
        self.cluster = self._make_cluster(config, store, runtime_pods)
        self._evictions = EvictionDispatcher(
            HostEvictions(config.eviction, self._layout, executor),
            None if self.cluster is None else self.cluster.evictions,
            config.state_dir,
        )

    # What most hosts do not have is imported where it is configured, because imports are most of
    # the start's CPU time.

    def _make_links(self, config: Config) -> "ShapedLinks | None":
        if config.network is None:
            return None
        from controller.reconcilers.network.links import ShapedLinks

        return ShapedLinks(config.network, self._layout)

    def _make_cluster(
        self, config: Config, store: Store, runtime_pods: Callable[[], Mapping[str, RuntimePod]]
    ) -> "Cluster | None":
        kubernetes = config.kubernetes
        if kubernetes is None:
            return None
        from controller.kube.cleanup import write_taint_note
        from controller.kube.cluster import Cluster

        def write_note() -> None:
            write_taint_note(config.state_dir, kubernetes.node, kubernetes.kubeconfig)

        cluster = Cluster(
            kubernetes,
            self._layout,
            lambda: self.sampler.cgroup_changes,
            store,
            runtime_pods,
        )
        write_note()
        self._write_note = write_note
        return cluster

    def store_again(self) -> None:
        """Store the rest of what is in the state directory, which was lost."""
        self._evictions.store_again()
        try:
            self._write_note()
        except OSError as error:
            _log.warning("%s: after a kill, a taint of the node may stay", error)

    def complete(self, config: Config) -> Config:
        """Return *config* with the facts of this host and the profiles of the cluster added.

        *config* holds the profiles of files only. Nothing takes effect, see ``reconfigure``.
        """
        if self.cluster is not None:
            config = replace(config, settings=self.cluster.with_profiles(config.settings))
        links = () if self.links is None else self.links.facts
        unified = self._layout.unified
        disks = find_disks(config.io)
        weighs = bool(weighted_disks(unified))
        weighs = weighs or (config.io.iocost and may_enable_iocost(unified, disks))
        host = replace(config.settings.host, links=links, resctrl=self.resctrl.facts)
        host = replace(
            host,
            memory_bytes=memory_bytes(),
            disks=disks,
            io_weight=weighs,
            cpu_model=cpu_model(),
            high_watermark_bytes=high_watermark_bytes(),
        )
        classes = resolve_io_classes(config.io_classes, self._layout, weighs=weighs)
        return replace(config, settings=replace(config.settings, host=host, io_classes=classes))

    def reconfigure(self, config: Config, workloads: tuple[Workload, ...]) -> None:
        """Take over *config*, from ``complete``, and *workloads*, from ``scan`` by its rules.

        A change of the mode restores every knob first. The caller decides which sections may
        differ from those that the node was made from.
        """
        enforcing = config.settings.mode is Mode.ENFORCE
        # First what a host without descriptors refuses: then nothing has changed.
        self.services.reconfigure(config.service_level)
        if enforcing is not self.knobs.enforcing:
            self.restore()
            self.knobs.enforcing = enforcing
        self.cores.reconfigure(config.settings.core)
        if enforcing and self.cores.allows(config.settings.core):
            # Before the first cookie, which must not wait for a compiler in the middle of a tick.
            self.sampler.prepare_moves()
        self._reconfigure_memory(config.settings)
        self._io_cost.reconfigure(config.settings if config.io.iocost else None)
        self.resctrl.set_profiles(config.settings.profiles)
        self.knobs.reconfigure(config.settings)
        self.sampler.reconfigure(config.settings)
        self.set_workloads(workloads)

    def _reconfigure_memory(self, settings: Settings) -> None:
        guard = settings.memory
        self.oom.reconfigure(guard is not None)
        if guard is None or not self.knobs.enforcing:
            self._memory.reconfigure(False)
        else:
            short = _SHORT_MARGINS * margin_bytes(guard, settings.host)
            self._memory.reconfigure(True, guard.capacity_bytes, short)

    @property
    def pods_known(self) -> bool:
        """Whether the last scan had the API server's list of pods; true without a cluster."""
        return self.cluster is None or self.cluster.pods_known

    @property
    def pause(self) -> Pause | None:
        """The pause in force in the last tick."""
        return self._pause

    @property
    def follows_closely(self) -> bool:
        """Whether something is to be read in each tick: new knobs, shaped links, cookies."""
        return self.knobs.has_unread or self.links is not None or self.cores.engaged

    @property
    def link_problems(self) -> Mapping[str, str]:
        """Why links are not shaped, by name; under ``pod_limits`` why pod limits do not apply."""
        return self._own_link_problems if self.links is None else self.links.problems

    @property
    def cluster_state(self) -> "ClusterState | None":
        """The state of the Kubernetes side now; ``None`` without a cluster."""
        return None if self.cluster is None else self.cluster.state

    def warn_of_source(self, source: Source, text: str) -> None:
        """Emit an Event that a source of control is not well; nothing without a cluster."""
        if self.cluster is not None:
            self.cluster.warn_of_source(source, text)

    def has_changed(self) -> bool:
        """Return whether the workloads may be others than at the last ``scan``.

        Always true without the sched probe, which counts the cgroups that are made and removed,
        with a cluster, because pods also change in the API server, and while workloads wait.
        """
        return self.cluster is not None or self._scanner.has_changed(self.sampler.cgroup_changes)

    def has_news(self) -> bool:
        """Return whether cgroups were made or removed, or pods changed, since the last ``scan``."""
        changed = self._scanner.has_changed(self.sampler.cgroup_changes)
        return changed or (self.cluster is not None and self.cluster.has_news)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Why cgroups that a rule matches are no workloads; see ``WorkloadScanner``."""
        return self._scanner.left_out

    @property
    def missing(self) -> tuple[str, ...]:
        """Which cgroups that a rule names do not exist; see ``WorkloadScanner``."""
        return self._scanner.missing

    @property
    def unmeasured(self) -> Mapping[QosClass, int]:
        """Number of workloads that are not measured, by class; see also ``Sampler.unmeasured``.

        Those that wait for a later scan are among them.
        """
        return Counter(self._scanner.waiting_counts) + Counter(self.sampler.unmeasured)

    def scan(self, config: Config) -> tuple[Workload, ...]:
        """Return the workloads of this host by the rules of *config*, without applying them.

        Apply them with ``set_workloads``.
        """
        workloads = self._scanner.scan(config, self.cluster, self.sampler.cgroup_changes)
        waiting = self._scanner.waiting.values()
        self.sampler.set_waiting(each for each in waiting if each.qos is QosClass.BE)
        return workloads

    def set_workloads(self, workloads: tuple[Workload, ...]) -> None:
        """Measure and steer exactly *workloads* from now on."""
        change = diff_workloads(self.workloads, workloads)
        self._limited += sum(map(is_limited, change.added)) - sum(map(is_limited, change.removed))
        self.knobs.set_workloads(workloads, change)
        self.workloads = workloads
        self.sampler.set_workloads(workloads)
        self._set_steered()
        if self.links is not None:
            return
        if text := unkept(self._limited, 0, shaped=False):
            if not self._own_link_problems:
                _log.warning("%s", text)
            self._own_link_problems = {POD_LIMITS: text}
        else:
            self._own_link_problems = {}

    def _set_steered(self) -> None:
        """Hand the workloads to the reconcilers, paused ones as system workloads."""
        self._steered = unpaused(self.workloads, self._pause)
        self.resctrl.set_workloads(self._steered)
        if self.links is not None:
            self.links.set_workloads(self._steered)
        self.cores.set_workloads(self._steered)
        self._memory.set_workloads(self._steered)
        self.oom.set_workloads(self._steered)
        self._io_cost.set_workloads(self._steered)

    def refresh_targets(self) -> None:
        """Leave alone what another agent of this node controls, and renew the knobs to read."""
        if self.cluster is not None:
            self.knobs.cede(self.cluster.ceded_knobs(self.knobs.holds, time.monotonic_ns()))
        self.knobs.refresh_targets()

    @property
    def pause_annotation(self) -> str | None:
        """The text of the Node's annotation for pauses, empty without one or without a cluster.

        ``None``: not known yet.
        """
        return "" if self.cluster is None else self.cluster.pause_annotation

    @property
    def labels(self) -> Mapping[str, str] | None:
        """The labels of the Node, ``None``: not known yet, or without a cluster."""
        return None if self.cluster is None else self.cluster.node_labels

    @property
    def knows_reaches(self) -> bool:
        """Whether ``labels`` has where rollouts put policies in force."""
        return self.cluster is None or self.cluster.knows_reaches

    def poll(self, pause: Pause | None, left_out_ns: int) -> Snapshot:
        """Read the probes and a part of the knobs; return the input of this tick's plan.

        *pause* is in force in this tick. *left_out_ns*: see ``Snapshot``.
        """
        if pause != self._pause:
            self._pause = pause
            self._set_steered()
            both = zip(self.workloads, self._steered, strict=True)
            self._evictions.spare({each.path for each, steered in both if each is not steered})
        if self.cluster is not None:
            self.cluster.check()
            self.services.follow_pods(self.cluster)
        shared_cpus = "" if self._shared_cpus is None else self._shared_cpus.poll()
        if shared_cpus:
            self.knobs.isolate()
        measured = self.sampler.poll()
        if self.sampler.reading is not None and self.sampler.reading.rearranged:
            self.cores.set_workloads(self._steered)  # slots may have changed hands
        self.knobs.poll(measured.time_ns)
        return replace(
            measured,
            knobs=self.knobs.readings,
            services=self.services.poll(measured.time_ns),
            links=() if self.links is None else self.links.samples(measured.time_ns),
            core_overlap_ratio=self.cores.overlap(measured.time_ns),
            evictions=self._evictions.answers(),
            pause=pause,
            left_out_ns=left_out_ns,
            memory=self._memory.poll(measured.time_ns),
            shared_cpus=shared_cpus,
        )

    def execute(self, plan: Plan, arrived: Collection[str] = ()) -> tuple[Outcome, ...]:
        """Write the actions of *plan* and run the reconcilers; return what was read back.

        For enforce mode.

        :param arrived: the ids of pods of which a container is about to run.
        """
        was_released = self.knobs.released
        outcomes = self.knobs.execute(plan, self._first_moves(arrived))
        if plan.released:
            if not was_released:
                self._evictions.reset()
            return outcomes
        # Work that grows has to be seen before it reaches a limit that was lowered for a service.
        self._memory.closely = any(
            each.knob is Knob.MEMORY_MAX and each.part > 0 for each in plan.rungs
        )
        return outcomes

    def _first_moves(self, arrived: Collection[str]) -> tuple[Move, ...]:
        """Return the tasks of the pods *arrived* as moves into their workloads."""
        if not arrived or self.cluster is None:
            return ()
        mount, version = self._layout.mount, self._layout.version
        return tuple(
            Move(each.cgroup, tid, tid, whole=False)
            for each in self.cluster.workloads_of(arrived)
            for tid, _ in members(mount, version, [(target_of(each), "")])
        )

    @property
    def eviction_history(self) -> EvictionHistory:
        """The evictions so far, those of earlier runs included: input of a new planner."""
        return self._evictions.history

    def dispatch(
        self, snapshot: Snapshot, plan: Plan, in_force: InForce, history: EvictionHistory
    ) -> None:
        """Start the eviction of *plan*, if any, and pass *plan* and *in_force* on to the cluster.

        In observe mode too, where evictions are only reported.

        :param history: all evictions up to and including this plan's.
        """
        now_ns = time.monotonic_ns()
        self._evictions.dispatch(
            plan, history, self.workloads, enforcing=self.knobs.enforcing, now_ns=now_ns
        )
        if self.cluster is not None:
            mode = Mode.ENFORCE if self.knobs.enforcing else Mode.OBSERVE
            self.cluster.update(snapshot, plan, in_force, self.workloads, mode)

    def restore(self) -> RestoreReport:
        """Restore every knob and forget its reading, log the results and return them."""
        report = self.knobs.restore()
        self._evictions.reset()
        return report

    def close(self) -> None:
        """Detach the probes and end all threads. Knobs are not touched, see ``restore``."""
        for opened in (self.cores, self.services, self.sampler, self.links, self.cluster):
            if opened is not None:
                opened.close()
        if self.cluster is not None and not self.cluster.may_have_left_objects:
            from controller.kube.cleanup import remove_taint_note

            remove_taint_note(self._state_dir)
