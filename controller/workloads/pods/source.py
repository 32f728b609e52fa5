# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The pods of this node as workloads: the list of the API server joined with the cgroups here.

A pod is a workload while it has a cgroup and its class is known. What happens to a pod depends on
whether the API server lists it (``classify.py`` has the rules for the classes). While the API
server is away, its last list stays in use.

- Listed, with a cgroup: a workload with the class, service, profile and limits of its API object.
  Without labels the Kubernetes QoS class decides.
- Listed, without a cgroup: not started yet, or over. It is no workload.
- Listed earlier, not listed now: kubelet has not removed it yet. It stays the workload of its last
  API object but cannot be evicted.
- Neither listed nor reported, and no pod of this host ever listed: it is no workload. Without the
  list, or with that of another node, nobody knows which pods are to be left alone.
- Never listed, but the container runtime reported it: nothing is done to it in the first 5 s, in
  which the list usually catches up. Then it has the class, service and profile of its labels and
  annotations. Best-effort work of a node whose list was read does not wait. The runtime knows no
  owner and no extended resources, so the name of a service may differ, limits are missing, and the
  pod cannot be evicted. As soon as it is listed, the first rule applies.
- Never listed and not reported, but others were: it waits as well. Then it is classified by its
  cgroup alone, again every 5 s until that decides. It is named ``pod:UID`` and is a service of its
  own if latency-sensitive. It has the profile of a pod without an API object, no limits, and cannot
  be evicted.
- Some pods have their containers as workloads in their place (``containers.py``).
- Static pods: the mirror pod has the id of the cgroup, so they are listed as other pods are. With
  or without the list their class is system. Where the id is a UUID, the mirror pod counts only if
  no pod with that UUID is listed, or was, and if a container of its status lies in the cgroup.
  Only kubelet writes the status, so no pod can claim the cgroup of another one.

Only pods below the roots of this node count: other ``kubepods`` cgroups belong to nodes that run in
containers here. A pod that shares a cgroup with a configured workload is left to that workload
(``merge_with_configured``).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
import itertools
import operator

from controller.config.profile_set import base_name
from controller.config.sections.service_sources import PodAddress
from controller.core.model import CgroupId, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout, memory_bytes, possible_cpus
from controller.workloads.pods.cgroups import PodCgroup, PodCgroups
from controller.workloads.pods.classify import Classified, ClassRules, classify, classify_by_cgroup
from controller.workloads.pods.completed import CompletedPods
from controller.workloads.pods.containers import (
    container_workloads,
    has_container,
    is_divided,
)
from controller.workloads.pods.identity import core_group, evictable, service_name
from controller.workloads.pods.pod import Pod, PodError, Pods, RuntimePod, parse_runtime_pod
from controller.workloads.pods.pod_class import (
    FOR_CACHES,
    FOR_DISKS,
    NO_CLASSES,
    PodClasses,
    choose_class,
)
from controller.workloads.pods.profile_choice import ChooseProfile
from controller.workloads.pods.requests import network_limit

__all__ = ("KubernetesSource", "merge_with_configured")


def merge_with_configured(
    configured: tuple[Workload, ...], pods: tuple[Workload, ...]
) -> tuple[tuple[Workload, ...], tuple[str, ...]]:
    """Return *configured* and the pods that share no cgroup with it, and a text per omitted pod.

    A knob of a cgroup acts on everything in it, so no workload may lie inside another one. The
    configured workload goes before the pod, because the administrator has named it.
    """
    if not configured:
        return pods, ()
    owners = {workload.path: workload for workload in configured}
    above = {level: workload for workload in configured for level in _above(workload.path)}
    kept: list[Workload] = []
    conflicts: dict[str, None] = {}
    for pod in pods:
        # The weight of a whole pod is set, also where its containers are the workloads.
        other = above.get(pod.path if pod.container_of is None else pod.container_of.path)
        for level in (pod.path, *_above(pod.path)):
            other = other or owners.get(level)
        if other is None:
            kept.append(pod)
        else:
            text = f"left to the configured workload {other.name!r}, which has {other.path}"
            conflicts[f"{pod.whole_name}: {text}"] = None
    return (*configured, *kept), tuple(conflicts)


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


# How long a pod with a cgroup may be missing on the list before it is classified by its cgroup.
_GRACE_NS = 5 * NS_PER_SEC
# Bound for one scan: to classify a pod by its cgroup takes a tenth of a millisecond.
_MAX_CGROUP_CHECKS = 50
_NONE_REPORTED: Mapping[str, RuntimePod] = {}


@dataclass(slots=True)
class _Entry:
    """A pod with a cgroup, and the inputs of its workload, which is made only when they change.

    ``listed`` is the present API object of the pod, ``pod`` the last one. ``workload`` is ``None``
    while the class is not known; at ``due_ns`` the pod is classified by its cgroup. ``containers``
    are the workloads in its place, of a pod that is steered container by container.
    """

    cgroup: PodCgroup
    due_ns: int
    pod: Pod | None = None
    listed: Pod | None = None
    workload: Workload | None = None
    containers: tuple[Workload, ...] = ()
    classified: Classified | None = None
    problem: str | None = None


class KubernetesSource:
    """Joins pods and cgroups; for the control thread alone.

    ``roots`` are the cgroups that contain the pods of this node, ``foreign_roots`` other
    ``kubepods`` cgroups with pods. ``matched``: a pod with a cgroup here was on the list; it stays
    true. ``revision`` changes with every scan that may have changed one
    of the properties.

    :param layout: the hierarchy with the cgroups of the pods.
    :param pods: returns the last list of the API server; must not block.
    :param rules: the rules of the administrator for the classes.
    :param roots: the cgroups that contain the pods of this node; ``None``: they are searched.
    :param names: the extended resources, CPU and memory, that best-effort pods are limited to.
    :param cgroup_changes: see ``PodCgroups``.
    :param runtime_pods: returns the pods that the container runtime reported, by UID; must not
        block, and return another object after a change.
    :param label_keys: see ``parse_pod``.
    """

    def __init__(
        self,
        layout: CgroupLayout,
        pods: Callable[[], Pods],
        rules: ClassRules,
        roots: tuple[str, ...] | None = None,
        names: tuple[str, str] = ("", ""),
        cgroup_changes: Callable[[], int | None] = lambda: None,
        runtime_pods: Callable[[], Mapping[str, RuntimePod]] = dict,
        label_keys: frozenset[str] = frozenset(),
    ) -> None:
        self._layout = layout
        self._pods = pods
        self._runtime_pods = runtime_pods
        self._label_keys = label_keys
        self._pod_classes = NO_CLASSES
        self._reported = _NONE_REPORTED
        self._rules = rules
        self._names = names
        self._capacity = 1000 * len(possible_cpus()), memory_bytes()
        self._cgroups = PodCgroups(layout.mount, roots, cgroup_changes)
        self._fixed_roots = roots is not None
        self._entries: dict[int, _Entry] = {}
        self._classes: Counter[tuple[str, str]] = Counter()
        self._completed = CompletedPods()
        self._inputs: (
            tuple[Pods, Mapping[str, object], object, ChooseProfile, PodClasses] | None
        ) = None
        self._undecided = False  # whether the class of a pod is not known yet
        self._cgroup_checks = 0  # in this scan
        self._workloads: tuple[Workload, ...] = ()
        self.roots: tuple[str, ...] = ()
        self.foreign_roots: tuple[str, ...] = ()
        self.matched = False
        self.revision = 0

    def scan(
        self, now_ns: int, choose: ChooseProfile, classes: PodClasses = NO_CLASSES
    ) -> tuple[Workload, ...]:
        """Return the pods that are workloads now, sorted by path.

        An unchanged workload stays the same object, and an unchanged result the same tuple.

        :param choose: chooses the profiles; must be another object when its choices change.
        :param classes: the configured classes, of each kind one of which a pod may have. They must
            be another object when they change.
        """
        pods = self._pods()
        listed = pods.pods
        earlier, self._reported = self._reported, self._runtime_pods() or _NONE_REPORTED
        told = [uid for uid, pod in self._reported.items() if earlier.get(uid) is not pod]
        found = self._cgroups.scan(now_ns, told)
        inputs = (pods, found, self._reported, choose, classes)
        before, self._inputs = self._inputs, inputs
        self._pod_classes = classes
        same = before is not None and all(map(operator.is_, before, self._inputs))
        if same and not self._undecided:
            return self._workloads
        self._cgroup_checks = 0
        self.revision += 1
        self._choose_roots(found, listed)
        here = itertools.chain.from_iterable(found[root] for root in self.roots)
        self.matched = self.matched or any(cgroup.uid in listed for cgroup in here)
        other_choices = before is not None and not all(map(operator.is_, before[3:], inputs[3:]))
        known, entries = self._entries, dict[int, _Entry]()
        workloads: list[Workload] = []
        unlisted: list[_Entry] = []
        self._undecided = False
        for cgroup in itertools.chain.from_iterable(found[root] for root in self.roots):
            entry = known.get(cgroup.inode)
            if entry is None or entry.cgroup is not cgroup:
                self._count(entry, -1)
                entry = _Entry(cgroup, now_ns + _GRACE_NS)
            entries[cgroup.inode] = entry
            pod = listed.get(cgroup.uid)
            if pod is None and cgroup.uid in pods.claims:
                pod = self._static_pod(entry, pods.claims[cgroup.uid])
            # Few of a thousand pods have changed since the last scan.
            if entry.workload is None or entry.listed is not pod or other_choices:
                self._update(entry, pod, choose, now_ns)
            if entry.workload is None:
                self._undecided = True
            elif is_divided(entry.workload, cgroup, self._layout, self._is_limited(cgroup.uid)):
                found_here = self._cgroups.containers(cgroup)
                ids = () if entry.pod is None else entry.pod.containers
                before_here = entry.containers
                entry.containers = container_workloads(entry.workload, ids, found_here, before_here)
                workloads += entry.containers
            elif pod is None:
                unlisted.append(entry)
            else:
                workloads.append(entry.workload)
        for inode in known.keys() - entries.keys():
            self._count(known[inode], -1)
            self._completed.lose(known[inode].cgroup.uid)
        self._completed.find(listed)
        self._entries = entries
        if unlisted:
            workloads += _with_unique_names(unlisted, {workload.name for workload in workloads})
        workloads.sort(key=operator.attrgetter("path"))
        if (found_workloads := tuple(workloads)) != self._workloads:
            self._workloads = found_workloads
        return self._workloads

    def _static_pod(self, entry: _Entry, claims: tuple[Pod, ...]) -> Pod | None:
        """Return the mirror pod among *claims* whose containers lie in the cgroup of *entry*."""
        if entry.pod is not None and not entry.pod.mirror:
            return None
        here = self._cgroups.containers(entry.cgroup)
        return next((each for each in claims if has_container(each.containers, here)), None)

    def pod_of(self, cgroup: CgroupId) -> Pod | None:
        """Return the last API object of the pod in *cgroup*; ``None``: never listed, or no pod."""
        entry = self._entries.get(cgroup.id)
        return None if entry is None else entry.pod

    @property
    def best_effort_levels(self) -> tuple[str, ...]:
        """The cgroups that contain the BestEffort pods of this node."""
        return tuple(p for root in self.roots for p in self._cgroups.levels(root, "BestEffort"))

    @property
    def unlisted(self) -> int:
        """The number of pods with a cgroup here that the API server does not list."""
        return sum(entry.listed is None for entry in self._entries.values())

    @property
    def completed(self) -> int:
        """The number of best-effort pods that succeeded since the first scan."""
        return self._completed.count

    @property
    def classes(self) -> Mapping[tuple[str, str], int]:
        """The number of workloads by (class, kind of the rule that gave the class)."""
        return {key: count for key, count in self._classes.items() if count}

    @property
    def problems(self) -> Iterator[tuple[Pod, str]]:
        """The problems with labels and annotations that are ignored, by pod."""
        for entry in self._entries.values():
            if entry.pod is not None and entry.problem:
                yield entry.pod, entry.problem

    def addresses(self) -> tuple[PodAddress, ...]:
        """Return the pods of services that have an address, as of the last scan."""
        return tuple(
            PodAddress(workload.service, base_name(workload.profile), entry.pod.ip)
            for entry in self._entries.values()
            if (workload := entry.workload) is not None
            and workload.qos is QosClass.LS
            and entry.pod is not None
            and entry.pod.ip
        )

    def workloads_of(self, uids: Collection[str]) -> list[Workload]:
        """Return the workloads of the pods *uids*, as of the last scan."""
        return [
            workload
            for entry in self._entries.values()
            if entry.cgroup.uid in uids
            for workload in entry.containers or (entry.workload,)
            if workload is not None
        ]

    def _choose_roots(
        self, found: Mapping[str, tuple[PodCgroup, ...]], listed: Mapping[str, Pod]
    ) -> None:
        # A kubelet has one root. Other roots belong to nodes that run in containers here, or were
        # made by another program; the pods in them are left alone. The root of this node is the one
        # with the agent's own pod; else the last choice, while it contains a known pod, listed or
        # reported; else the one with the most known pods, of which several cgroups count once.
        # Without any of these pods the last choice holds while that root contains pods; else it is
        # the only root that contains pods.
        if self._fixed_roots:
            self.roots = tuple(found)
            return
        uids = {root: {cgroup.uid for cgroup in cgroups} for root, cgroups in found.items()}
        own = self._rules.own_uid
        ranks = {
            root: (own in here, root in self.roots and known > 0, known)
            for root, here in uids.items()
            if (known := len(here & (listed.keys() | self._reported.keys()))) or own in here
        }
        inhabited = [root for root, cgroups in found.items() if cgroups]
        if ranks:
            self.roots = (max(ranks, key=lambda root: ranks[root]),)
        elif not (len(self.roots) == 1 and self.roots[0] in inhabited):
            self.roots = tuple(inhabited) if len(inhabited) == 1 else ()
        self.foreign_roots = tuple(root for root in inhabited if root not in self.roots)

    def _update(self, entry: _Entry, pod: Pod | None, choose: ChooseProfile, now_ns: int) -> None:
        self._count(entry, -1)
        entry.listed = pod
        entry.pod = pod = (
            pod or entry.pod or self._reported_pod(entry.cgroup, now_ns >= entry.due_ns)
        )
        if pod is not None:
            entry.classified = classify(pod, self._rules)
        elif (
            entry.classified is None
            and self.matched
            and now_ns >= entry.due_ns
            and self._cgroup_checks < _MAX_CGROUP_CHECKS
        ):
            self._cgroup_checks += 1
            entry.due_ns = now_ns + _GRACE_NS
            entry.classified = classify_by_cgroup(entry.cgroup, self._layout.mount)
        if entry.classified is not None:
            if pod is not None and entry.classified.qos is QosClass.BE:
                self._completed.see(entry.cgroup.uid, pod)
            workload, entry.problem = self._workload(entry, entry.classified, choose)
            if workload != entry.workload:
                entry.workload = workload
        self._count(entry, 1)

    def _reported_pod(self, cgroup: PodCgroup, due: bool) -> Pod | None:
        """Return the pod in *cgroup* as the runtime reported it; *due*: the list had its time."""
        given = self._reported.get(cgroup.uid)
        if given is None or not (due or self.matched):
            return None
        try:
            pod = parse_runtime_pod(given, cgroup.qos_class, self._label_keys)
        except PodError:  # a pod that no kubelet made
            return None
        is_best_effort = classify(pod, self._rules).qos is QosClass.BE
        return pod if due or is_best_effort else None

    def _is_limited(self, uid: str) -> bool:
        given = self._reported.get(uid)
        return given is not None and given.limited

    def _count(self, entry: _Entry | None, by: int) -> None:
        if entry is not None and entry.classified is not None:
            self._classes[str(entry.classified.qos), entry.classified.given_by] += by

    def _workload(
        self, entry: _Entry, classified: Classified, choose: ChooseProfile
    ) -> tuple[Workload, str | None]:
        pod, cgroup, qos = entry.pod, entry.cgroup, classified.qos
        name = f"pod:{cgroup.uid}" if pod is None else pod.key
        problems = [classified.problem]
        service, profile, group, for_caches, for_disks = name, "", "", "", ""
        if pod is not None:
            problems += [f"{key}: too long, not read" for key in pod.oversized]
            classes = self._pod_classes
            for_caches, problem = choose_class(pod, qos, classes.resctrl, FOR_CACHES)
            problems.append(problem)
            for_disks, problem = choose_class(pod, qos, classes.io, FOR_DISKS)
            problems.append(problem)
        if qos is QosClass.LS:
            chosen, problem, derived = choose(pod)
            problems.append(problem)
            profile = derived or chosen
            service = f"{name if pod is None else service_name(pod)}@{chosen}"
        requests: Mapping[str, int] = {}
        if qos is QosClass.BE and pod is not None:
            group, problem = core_group(pod)
            problems.append(problem)
            requests = pod.requests
        network = network_limit({} if pod is None else pod.annotations, qos)
        problems.append(network.problem)
        # A request of the whole capacity or more is no limit, and the kernel may refuse to set it.
        milli_cpus, limit_bytes = (
            amount if (amount := requests.get(name, capacity)) < capacity else None
            for name, capacity in zip(self._names, self._capacity, strict=True)
        )
        serving = pod if qos is QosClass.LS else None
        workload = Workload(
            name=name,
            cgroup=CgroupId(self._layout.hierarchy, cgroup.inode),
            path=cgroup.path,
            qos=qos,
            service=service,
            profile=profile,
            core_group=group,
            priority=0 if pod is None else pod.priority,
            evictable=qos is QosClass.BE and entry.listed is not None and evictable(entry.listed),
            limit_cpus=None if milli_cpus is None else milli_cpus / 1000,
            limit_memory_bytes=limit_bytes,
            limit_egress_bytes_per_s=network.egress,
            limit_ingress_bytes_per_s=network.ingress,
            image="" if serving is None else serving.image_key,
            resctrl_class=for_caches,
            io_class=for_disks,
            request_cpus=None if serving is None else serving.request_cpus,
            request_memory_bytes=None if serving is None else serving.request_memory_bytes,
        )
        return workload, "; ".join(filter(None, problems)) or None


def _with_unique_names(unlisted: Iterable[_Entry], taken: set[str]) -> Iterator[Workload]:
    # Names are unique on the list. A pod that is no longer listed may still run here while its
    # successor has the same name, as in a StatefulSet.
    for entry in unlisted:
        workload = entry.workload
        assert workload is not None
        if workload.name in taken:
            workload = workload._replace(name=f"{workload.name}#{entry.cgroup.inode}")
        taken.add(workload.name)
        yield workload
