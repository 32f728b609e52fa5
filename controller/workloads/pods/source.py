# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PURE: pods beside the workloads that the configuration names, no cgroup twice.

The pods of this node as workloads: what the API server says, joined with the cgroups here.

A pod is a workload as long as it has a cgroup. While the API server does not answer, what it said
last holds; a pod that it never told of is classified by its cgroup.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
import itertools
import operator

from controller.core.model import CgroupId, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout, memory_bytes, possible_cpus
from controller.workloads.pods.cgroups import PodCgroup, PodCgroups
from controller.workloads.pods.classify import Classified, ClassRules, classify, classify_by_cgroup
from controller.workloads.pods.identity import core_group, evictable, service_name
from controller.workloads.pods.pod import Pod, Pods
from controller.workloads.pods.profile_choice import ChooseProfile
from controller.workloads.pods.requests import network_limit

__all__ = (
    "KubernetesSource",
    "merge_with_configured",
)


def merge_with_configured(
    configured: tuple[Workload, ...], pods: tuple[Workload, ...]
) -> tuple[tuple[Workload, ...], tuple[str, ...]]:
    """Return both without the pods that share cgroups with *configured*, and what was left out.

    What is done to a cgroup is done to all in it, so no workload may lie in another. The
    configuration is the administrator's word; the pods give way.
    """
    if not configured:
        return pods, ()
    owners = {workload.path: workload for workload in configured}
    above = {level: workload for workload in configured for level in _above(workload.path)}
    kept, conflicts = [], []
    for pod in pods:
        other = above.get(pod.path)
        for level in (pod.path, *_above(pod.path)):
            other = other or owners.get(level)
        if other is None:
            kept.append(pod)
        else:
            conflicts.append(
                f"{pod.name}: left to the configured workload {other.name!r}, which has "
                f"{other.path}"
            )
    return (*configured, *kept), tuple(conflicts)


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


# A cgroup may be seen before the API server's word of its pod. Until then nothing is done to it.
_PATIENCE_NS = 5 * NS_PER_SEC
# Looking at the processes of one takes a tenth of a millisecond.
_MOST_LOOKS = 50


@dataclass(slots=True)
class _Entry:
    """One pod with a cgroup: from what its workload was made, so that it is made only once.

    ``listed`` is the pod as the API server has it now, ``pod`` as it had it last. ``workload`` is
    ``None`` before its class is known; at ``due_ns`` that is looked for in the cgroup.
    """

    cgroup: PodCgroup
    due_ns: int
    pod: Pod | None = None
    listed: Pod | None = None
    workload: Workload | None = None
    classified: Classified | None = None
    problem: str | None = None


class KubernetesSource:
    """Joins pods and cgroups, for the control thread alone.

    :param pods: returns what is known from the API server now; must not block.
    :param roots: cgroups that hold this node's pods; ``None``: they are looked for.
    :param names: the extended resources, CPU and memory, that best-effort pods are held to.
    :param cgroup_changes: see ``PodCgroups``.
    """

    def __init__(
        self,
        layout: CgroupLayout,
        pods: Callable[[], Pods],
        rules: ClassRules,
        roots: tuple[str, ...] | None = None,
        names: tuple[str, str] = ("", ""),
        cgroup_changes: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._layout = layout
        self._pods = pods
        self._rules = rules
        self._names = names
        self._most = 1000 * len(possible_cpus()), memory_bytes()
        self._cgroups = PodCgroups(layout.mount, roots, cgroup_changes)
        self._all_roots = roots is not None
        self._entries: dict[int, _Entry] = {}
        self._classes: Counter[tuple[str, str]] = Counter()
        self._inputs: tuple[Mapping[str, Pod], Mapping[str, object], ChooseProfile] | None = None
        self._waiting = False
        self._looks = 0
        self._workloads: tuple[Workload, ...] = ()
        self.roots: tuple[str, ...] = ()
        self.foreign_roots: tuple[str, ...] = ()
        # Changes whenever one of the properties below may have.
        self.revision = 0

    def scan(self, now_ns: int, choose: ChooseProfile) -> tuple[Workload, ...]:
        """Return the pods that run here now, sorted by path; the same tuple if nothing changed.

        Who did not change stays the same object. *choose* must be another object when it decides
        otherwise than before.
        """
        listed = self._pods().pods
        found = self._cgroups.scan(now_ns)
        before, self._inputs = self._inputs, (listed, found, choose)
        same = before is not None and all(map(operator.is_, before, self._inputs))
        if same and not self._waiting:
            return self._workloads
        self._looks = 0
        self.revision += 1
        self._choose_roots(found, listed)
        anew = before is not None and before[2] is not choose
        known, entries = self._entries, dict[int, _Entry]()
        workloads: list[Workload] = []
        forgotten: list[_Entry] = []
        self._waiting = False
        for cgroup in itertools.chain.from_iterable(found[root] for root in self.roots):
            entry = known.get(cgroup.inode)
            if entry is None or entry.cgroup is not cgroup:
                self._count(entry, -1)
                entry = _Entry(cgroup, now_ns + _PATIENCE_NS)
            entries[cgroup.inode] = entry
            pod = listed.get(cgroup.uid)
            # Of a thousand pods hardly any has changed.
            if entry.workload is None or entry.listed is not pod or anew:
                self._update(entry, pod, choose, now_ns)
            if entry.workload is None:
                self._waiting = True
            elif pod is None:
                forgotten.append(entry)
            else:
                workloads.append(entry.workload)
        for inode in known.keys() - entries.keys():
            self._count(known[inode], -1)
        self._entries = entries
        if forgotten:
            workloads += _named_apart(forgotten, {workload.name for workload in workloads})
        workloads.sort(key=operator.attrgetter("path"))
        if (here := tuple(workloads)) != self._workloads:
            self._workloads = here
        return self._workloads

    def pod_of(self, cgroup: CgroupId) -> Pod | None:
        """Return the pod of a workload, ``None`` if there is none or only its cgroup is known."""
        entry = self._entries.get(cgroup.id)
        return None if entry is None else entry.pod

    @property
    def best_effort_levels(self) -> tuple[str, ...]:
        """The cgroups that hold this node's BestEffort pods."""
        return tuple(p for root in self.roots for p in self._cgroups.levels(root, "BestEffort"))

    @property
    def unlisted(self) -> int:
        """How many pods have a cgroup here and are not on the API server's list."""
        return sum(entry.listed is None for entry in self._entries.values())

    @property
    def classes(self) -> Mapping[tuple[str, str], int]:
        """How many workloads have which class by which kind of rule."""
        return {key: count for key, count in self._classes.items() if count}

    @property
    def problems(self) -> Iterator[tuple[str, str]]:
        """What the pods' labels and annotations say and is not believed, by pod."""
        for entry in self._entries.values():
            if entry.pod is not None and entry.problem:
                yield entry.pod.key, entry.problem

    def _choose_roots(
        self, found: Mapping[str, tuple[PodCgroup, ...]], listed: Mapping[str, Pod]
    ) -> None:
        # One kubelet has one root. Others are those of nodes that run in containers here, or
        # were made by somebody who may make cgroups; what is in them is not ours to touch.
        if self._all_roots:
            self.roots = tuple(found)
            return
        known = {
            root: sum(c.uid in listed or c.uid == self._rules.own_uid for c in cgroups)
            for root, cgroups in found.items()
        }
        inhabited = [root for root, cgroups in found.items() if cgroups]
        best = max(known, key=lambda root: known[root], default="")
        if known.get(best):
            self.roots = (best,)
        elif not (len(self.roots) == 1 and self.roots[0] in inhabited):
            self.roots = tuple(inhabited) if len(inhabited) == 1 else ()
        self.foreign_roots = tuple(root for root in inhabited if root not in self.roots)

    def _update(self, entry: _Entry, pod: Pod | None, choose: ChooseProfile, now_ns: int) -> None:
        self._count(entry, -1)
        entry.listed = pod
        entry.pod = pod = pod or entry.pod
        if pod is not None:
            entry.classified = classify(pod, self._rules)
        elif entry.classified is None and now_ns >= entry.due_ns and self._looks < _MOST_LOOKS:
            self._looks += 1
            entry.due_ns = now_ns + _PATIENCE_NS
            entry.classified = classify_by_cgroup(entry.cgroup, self._layout.mount)
        if entry.classified is not None:
            workload, entry.problem = self._workload(entry, entry.classified, choose)
            if workload != entry.workload:
                entry.workload = workload
        self._count(entry, 1)

    def _count(self, entry: _Entry | None, by: int) -> None:
        if entry is not None and entry.classified is not None:
            self._classes[str(entry.classified.qos), entry.classified.given_by] += by

    def _workload(
        self, entry: _Entry, classified: Classified, choose: ChooseProfile
    ) -> tuple[Workload, str | None]:
        pod, cgroup, qos = entry.pod, entry.cgroup, classified.qos
        name = f"pod:{cgroup.uid}" if pod is None else pod.key
        problems = [classified.problem]
        service, profile, group = name, "", ""
        if pod is not None:
            problems += [f"{key}: too long, not read" for key in pod.oversized]
        if qos is QosClass.LS:
            chosen, problem, tailored = choose(pod)
            problems.append(problem)
            profile = tailored or chosen
            service = f"{name if pod is None else service_name(pod)}@{chosen}"
        asked: Mapping[str, int] = {}
        if qos is QosClass.BE and pod is not None:
            group, problem = core_group(pod)
            problems.append(problem)
            asked = pod.requests
        network = network_limit({} if pod is None else pod.annotations, qos)
        problems.append(network.problem)
        # More than there is limits nobody, and the kernel may refuse to be told so.
        milli_cpus, limit_bytes = (
            amount if (amount := asked.get(name, most)) < most else None
            for name, most in zip(self._names, self._most, strict=True)
        )
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
        )
        return workload, "; ".join(filter(None, problems)) or None


def _named_apart(forgotten: Iterable[_Entry], taken: set[str]) -> Iterator[Workload]:
    # The API server has every name once, but here a pod may linger that it has forgotten
    # and whose successor has its name (a StatefulSet's has).
    for entry in forgotten:
        workload = entry.workload
        assert workload is not None
        if workload.name in taken:
            workload = workload._replace(name=f"{workload.name}#{entry.cgroup.inode}")
        taken.add(workload.name)
        yield workload
