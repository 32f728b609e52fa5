# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes side of the control thread: pods as workloads, profiles, Events, capacity."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
import itertools
import logging
import os
from pathlib import Path
import re
import time

from controller.config.profile_set import base_name
from controller.config.rollout_reach import Reach, with_reaches
from controller.config.sections.io import IoClassConfig
from controller.config.sections.kubernetes import KubernetesConfig, ServiceProfiles
from controller.config.sections.resctrl import ResctrlClass
from controller.config.sections.service_sources import PodAddress
from controller.config.workload_rules import DEFAULT_PROFILE
from controller.core.decision import Plan
from controller.core.explain import describe_pause
from controller.core.in_force import InForce
from controller.core.model import Knob, Mode, Pause, Snapshot, Workload
from controller.core.settings import Profile, Settings
from controller.host.facts import CgroupLayout
from controller.host.memory import find_memory
from controller.host.resctrl import RESCTRL_DIR
from controller.host.sources import Source
from controller.host.store import Store
from controller.kube.client.api import Api
from controller.kube.client.rate_limit import RateLimitedLogger
from controller.kube.client.worker import Worker
from controller.kube.events import Events, Regarding
from controller.kube.own_node import OwnNode
from controller.kube.permissions import Permissions, needs
from controller.kube.pod_eviction import PodEvictions
from controller.kube.pod_watcher import PodWatcher
from controller.kube.profile_configmap import ConfigMapProfiles
from controller.kube.profile_descriptors import DescriptorProfiles
from controller.kube.reasons import Reason
from controller.kube.reclaimable_capacity import ClusterCapacity
from controller.kube.squeeze_events import SqueezeEvents
from controller.kube.state import ClusterState
from controller.workloads.pods.classify import ClassRules
from controller.workloads.pods.other_agents import Holds, OtherAgents
from controller.workloads.pods.pod import RuntimePod
from controller.workloads.pods.pod_class import NO_CLASSES, PodClasses
from controller.workloads.pods.profile_choice import ChooseProfile, profile_chooser, replacing
from controller.workloads.pods.source import KubernetesSource, merge_with_configured

__all__ = ("Cluster",)

_log = logging.getLogger(__name__)

_MAX_TEXTS = 100
# Time for the last requests; it must be shorter than the guardian's limit for an agent to end. A
# node that keeps the taint gets no pods, so a slow server has more time to remove it.
_CLOSE_WITHIN_S = 1.5
_CLEAN_WITHIN_S = 6.0
_OWN_CGROUP = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")

_ProfileReader = ConfigMapProfiles | DescriptorProfiles
# Those of the Node, the reaches of policies, and both.
_Labels = tuple[Mapping[str, str], Mapping[str, Reach], Mapping[str, str]]


class Cluster:
    """All parts that use the API server; the control thread's methods do not wait for the network.

    One thread watches the pods, one the Node, one the ConfigMap, one the ServiceProfileDescriptors
    (the last two if configured), and a worker sends requests.

    :param cgroup_changes: see ``PodCgroups``.
    :param store: see ``ClusterCapacity``.
    :param runtime_pods: see ``KubernetesSource``.
    """

    def __init__(
        self,
        config: KubernetesConfig,
        layout: CgroupLayout,
        cgroup_changes: Callable[[], int | None],
        store: Store,
        runtime_pods: Callable[[], Mapping[str, RuntimePod]] = dict,
    ) -> None:
        self._config = config
        rules = ClassRules(
            system_namespaces=frozenset(config.system_namespaces),
            trusted_namespaces=frozenset(config.trusted_namespaces),
            own_uid=_own_uid(),
        )
        self._api = Api(config.kubeconfig)
        self._worker = Worker(self._api)
        self._watcher = PodWatcher(self._api, config.node, config.profiles.label_keys)
        # Taken from the watcher once per scan, because it changes often between two scans.
        self._pods = self._watcher.pods
        self._source = KubernetesSource(
            layout,
            lambda: self._pods,
            rules,
            config.cgroup_roots,
            config.capacity.names,
            cgroup_changes,
            runtime_pods,
            config.profiles.label_keys,
        )
        self._events = events = Events(self._api, self._worker, config.node, enabled=config.events)
        pod_of = self._source.pod_of
        config_map = config.profiles.config_map
        self._config_map_profiles = (
            None if config_map is None else ConfigMapProfiles(self._api, events, config_map)
        )
        self._descriptor_profiles = (
            None
            if config.service_profiles is ServiceProfiles.NONE
            else DescriptorProfiles(self._api, config, rules)
        )
        self._squeezes = SqueezeEvents(events, config.node, pod_of)
        self.evictions = PodEvictions(
            self._api, self._worker, events, config.eviction, config.node, pod_of
        )
        self._capacity = ClusterCapacity(
            self._api, self._worker, config.capacity, config.node, layout, store
        )
        self._own_node = OwnNode(self._api, config.node)
        self._permissions = Permissions(self._api, self._worker, needs(config))
        self._labels: _Labels | None = None
        self._pause: Pause | None = None
        self._other_agents = OtherAgents(layout, rules, RESCTRL_DIR, find_memory(layout.unified))
        self._ceded: Mapping[Knob, str] = {}
        self._profiles: Mapping[str, Profile] = {}
        self._replaced: Mapping[str, str] = {}
        self._pod_classes = NO_CLASSES
        self._choose_named: ChooseProfile = profile_chooser({}, config.profiles, DEFAULT_PROFILE)
        self._choose = self._choose_named
        self._conflicts: tuple[str, ...] = ()
        self._revision = 0
        self._state = ClusterState(node=config.node)
        self._logged: frozenset[str] = frozenset()
        self._ignored: Mapping[str, str] = {}  # labels and annotations, by the id of the pod
        self._limited_log = RateLimitedLogger(_log)

    def check(self) -> None:
        """Raise the exception that ended one of the threads: a bug."""
        for each in self._threads:
            if each.failure is not None:
                raise each.failure

    @property
    def has_news(self) -> bool:
        """Whether the list of pods has changed since the last ``poll_profiles``."""
        return self._watcher.pods is not self._pods

    @property
    def revision(self) -> int:
        """A number that changes with each scan after which ``addresses`` may be others."""
        return self._source.revision

    def addresses(self) -> tuple[PodAddress, ...]:
        """Return the pods of services that have an address, as of the last scan."""
        return self._source.addresses()

    def workloads_of(self, uids: Collection[str]) -> list[Workload]:
        """Return the workloads of the pods *uids*, as of the last scan."""
        return self._source.workloads_of(uids)

    def poll_profiles(self) -> bool:
        """Let ``with_profiles`` use the newest profiles; return whether they changed.

        Must be called before each ``scan``.
        """
        self._pods = self._watcher.pods
        changed = self._config_map_profiles is not None and self._config_map_profiles.poll()
        if self._descriptor_profiles is not None:
            changed = (
                self._descriptor_profiles.set_pods(self._pods.pods, self._choose_named) or changed
            )
        return changed

    def with_profiles(self, settings: Settings) -> Settings:
        """Return *settings*, whose profiles are from files, with the cluster's profiles added."""
        for reader in self._profile_readers:
            settings = reader.merge_into(settings)
        return settings

    def scan(
        self,
        configured: tuple[Workload, ...],
        profiles: Mapping[str, Profile],
        now_ns: int,
        replaced: Mapping[str, str],
        classes: tuple[Sequence[ResctrlClass], Sequence[IoClassConfig]],
    ) -> tuple[Workload, ...]:
        """Return *configured* and the pods that run on this node, each with one of *profiles*.

        A pod gets the profile in *replaced* in place of the one that it would get, and may have
        one of each of *classes*, for caches and for disks. It is left out if its cgroup belongs to
        a configured workload.
        """
        if profiles is not self._profiles or replaced != self._replaced:
            self._profiles, self._replaced = profiles, replaced
            named = {name: each for name, each in profiles.items() if name == base_name(name)}
            choose = profile_chooser(named, self._config.profiles, DEFAULT_PROFILE)
            self._choose_named = replacing(choose, replaced, named) if replaced else choose
            self._choose = self._choose_named
            if self._descriptor_profiles is not None:
                self._choose = self._descriptor_profiles.chooser(profiles, self._choose_named)
        if self._config_map_profiles is not None:
            self._config_map_profiles.publish()
        if classes != self._pod_classes:
            self._pod_classes = PodClasses(*classes)
        pods = self._source.scan(now_ns, self._choose, self._pod_classes)
        before, revision = self._conflicts, self._revision
        workloads, self._conflicts = merge_with_configured(configured, pods)
        self._revision = self._source.revision
        if (before, revision) != (self._conflicts, self._revision):
            self._log_changes()
        return workloads

    def ceded_knobs(self, holds: Holds, now_ns: int) -> frozenset[Knob]:
        """Poll the signs of other agents on this node and return the knobs ceded to them."""
        if self._config.leave_to_others:
            levels = self._source.best_effort_levels
            self._other_agents.poll(now_ns, self._pods.pods.values(), levels, holds)
        ceded, before = self._other_agents.ceded, self._ceded
        for knob in ceded.keys() - before.keys():
            _log.warning("%s is left alone: %s", knob, ceded[knob])
        for knob in before.keys() - ceded.keys():
            _log.info("%s is controlled again: no other agent uses it", knob)
        self._ceded = ceded
        return frozenset(ceded)

    def update(
        self,
        snapshot: Snapshot,
        plan: Plan,
        in_force: InForce,
        workloads: tuple[Workload, ...],
        mode: Mode,
    ) -> None:
        """Update Events and capacity with *plan*, made from *snapshot*, and what is in force."""
        self._report_pause(snapshot.pause)
        self._squeezes.update(plan, in_force, mode)
        pods = self._pods.pods.values()
        enforcing = mode is Mode.ENFORCE and not plan.released
        self._capacity.update(snapshot, plan, workloads, pods, enforcing=enforcing)

    @property
    def pods_known(self) -> bool:
        """Whether the API server's list of pods was read before the last scan."""
        return self._pods.synced

    @property
    def pause_annotation(self) -> str | None:
        """The text of the Node's annotation for pauses, see ``OwnNode``."""
        return self._own_node.pause

    @property
    def node_labels(self) -> Mapping[str, str] | None:
        """The labels of the Node with the reaches of policies, ``None``: not known yet.

        The same object as long as nothing changes; see ``OwnNode`` and ``with_reaches``.
        """
        labels = self._own_node.labels
        if labels is None:
            return None
        profiles = None if self._config_map_profiles is None else self._config_map_profiles.state
        if profiles is not None and profiles.result is None and not profiles.unreadable:
            return None  # without the reaches another policy would be in force for a moment
        reaches = (None if profiles is None else profiles.policies) or {}
        if self._labels is None or self._labels[:2] != (labels, reaches):
            self._labels = labels, reaches, with_reaches(labels, reaches)
        return self._labels[2]

    @property
    def knows_reaches(self) -> bool:
        """Whether ``node_labels`` has the reaches, and not only because none was read yet."""
        profiles = None if self._config_map_profiles is None else self._config_map_profiles.state
        return profiles is None or profiles.policies is not None

    def _report_pause(self, pause: Pause | None) -> None:
        if pause == self._pause:
            return
        self._pause = pause
        reason = Reason.RESUMED if pause is None else Reason.PAUSED
        self._emit(reason, f"pause {describe_pause(pause)}")

    def warn_of_source(self, source: Source, text: str) -> None:
        """Emit an Event that a source of control is not well, see ``Sources``."""
        self._emit(Reason.SOURCE, text, source)

    def _emit(self, reason: Reason, note: str, topic: str = "") -> None:
        node = self._config.node
        self._events.emit(Regarding("Node", "", node, node), reason, note, "Warning", topic)

    @property
    def state(self) -> ClusterState:
        """The state of the Kubernetes side now, for the report of a tick."""
        pods = self._pods
        return replace(
            self._state,
            synced=pods.synced,
            matched=self._source.matched,
            node_missing=self._own_node.missing,
            age_s=self._watcher.age_s(time.monotonic_ns()),
            problem=self._watcher.problem,
            denied=self._denied(),
            requests=self._requests(),
            dropped_events=self._events.dropped,
            pods=len(pods.pods),
            running=0
            if self._source.matched
            else sum(not each.finished for each in pods.pods.values()),
            refused=pods.refused,
            marked_until_s=self.evictions.marked_until_s,
            reclaimable=self._capacity.state,
            profiles=None if self._config_map_profiles is None else self._config_map_profiles.state,
            descriptors=None
            if self._descriptor_profiles is None
            else self._descriptor_profiles.state,
            left_knobs={str(knob): reason for knob, reason in self._ceded.items()},
        )

    @property
    def may_have_left_objects(self) -> bool:
        """Whether the node may have the agent's taint or capacity."""
        return self.evictions.may_be_marked or self._capacity.present

    def close(self) -> None:
        """Remove the taint and the capacity of the node, and end all threads."""
        within_s = _CLEAN_WITHIN_S if self.may_have_left_objects else _CLOSE_WITHIN_S
        self._capacity.withdraw()
        self.evictions.remove_taint()
        for reader in self._profile_readers:
            reader.close()
        self._worker.close(within_s)
        self._own_node.close()
        self._watcher.close()

    @property
    def _threads(self) -> Iterator[PodWatcher | OwnNode | Worker | _ProfileReader]:
        yield from (self._watcher, self._own_node, self._worker, *self._profile_readers)

    @property
    def _profile_readers(self) -> Iterator[_ProfileReader]:
        # In this order, because descriptors modify the profiles of the ConfigMap.
        yield from filter(None, (self._config_map_profiles, self._descriptor_profiles))

    def _requests(self) -> Mapping[str, int]:
        # The number of failed requests by result.
        return sum((Counter(each.errors) for each in self._threads), Counter())

    def _denied(self) -> Mapping[str, str]:
        asked, every = self._permissions.missing, self._threads
        return {**asked, **{task: text for each in every for task, text in each.denied.items()}}

    def _log_changes(self) -> None:
        source = self._source
        ignored = list(itertools.islice(source.problems, _MAX_TEXTS))
        self._state = ClusterState(
            node=self._config.node,
            unlisted=source.unlisted,
            completed=source.completed,
            classes=source.classes,
            roots=source.roots,
            foreign_roots=source.foreign_roots,
            label_problems={pod.key: text for pod, text in ignored},
            conflicts=self._conflicts[:_MAX_TEXTS],
        )
        for pod, text in ignored:
            if self._ignored.get(pod.uid) != text:
                regarding = Regarding("Pod", pod.namespace, pod.name, pod.uid)
                self._events.emit(regarding, Reason.LABEL, text, topic=text)
        self._ignored = {pod.uid: text for pod, text in ignored}
        texts = [*self._state.conflicts, *(f"{pod.key}: {text}" for pod, text in ignored)]
        texts += [
            f"{root}: holds pods of another node: left alone" for root in source.foreign_roots
        ]
        for text in texts:
            if text not in self._logged:
                self._limited_log.warning(text)
        self._logged = frozenset(texts)


def _own_uid() -> str | None:
    # POD_UID is set by the downward API. Without it the uid is read from the process's cgroup path,
    # which works unless the container has a cgroup namespace of its own.
    if uid := os.environ.get("POD_UID"):
        return uid
    found = _OWN_CGROUP.search(Path("/proc/self/cgroup").read_text(encoding="utf-8"))
    return None if found is None else found[1].replace("_", "-")
