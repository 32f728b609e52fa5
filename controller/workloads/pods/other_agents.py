# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Knobs that another agent of this node manages: koordlet or katalyst-agent.

Two agents that write one file undo each other's work every few seconds, so a knob that one of them
manages is ceded to it. The evidence is a value that kubelet never writes (a quota, cpu.idle,
memory.high or CPUs on the cgroup of all BestEffort pods; resctrl groups), or pods whose cgroups the
agent sets by contract. A pod counts as one of these agents only if its class is system or if it
runs in the namespace of that agent.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from controller.core.knob_values import format_cpuset
from controller.core.model import CgroupId, Knob, QosClass
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout, possible_cpus
from controller.host.memory import NO_LIMIT_V1_BYTES, MemoryHierarchy
from controller.workloads.pods.classify import ClassRules, classify
from controller.workloads.pods.pod import Pod

__all__ = ("Holds", "OtherAgents")

# Returns whether sweetpoint itself has set a knob of a cgroup.
Holds = Callable[[CgroupId, Knob], bool]

_KOORDLET, _KATALYST = "koordlet", "katalyst-agent"
_KOORD_APP = "koord-app"
_NAMESPACES = {_KOORDLET: "koordinator-system", _KATALYST: "katalyst-system"}
# Resources of batch pods, from which koordlet sets quota and weight (its hook BatchResource).
_BATCH = "node.koordinator.sh/extended-resource-spec"
_RESCTRL_GROUPS = {
    _KOORDLET: frozenset({"LSR", "LS", "BE"}),
    _KATALYST: frozenset({"reclaim", "dedicated", "share", "system"}),
}
_RESCTRL_KNOBS = (Knob.RESCTRL_GROUP, Knob.LLC_WAYS, Knob.MBA)
# Both agents write at least once a minute. Evidence older than this no longer counts.
_KEEP_NS = 300 * NS_PER_SEC


@dataclass(slots=True)
class _Ceded:
    """A knob that is ceded to another agent, and the time of the last evidence."""

    reason: str
    seen_ns: int


class OtherAgents:
    """Detects other agents and the knobs that they manage.

    :param layout: the hierarchy with the cgroups of the pods.
    :param rules: decide whether a pod is part of the system.
    :param resctrl: mount point of resctrl.
    :param memory: the hierarchy of the memory controller.
    """

    def __init__(
        self, layout: CgroupLayout, rules: ClassRules, resctrl: Path, memory: MemoryHierarchy
    ) -> None:
        self._layout = layout
        self._memory = memory
        self._rules = rules
        self._resctrl = resctrl
        self._ceded: dict[Knob, _Ceded] = {}

    @property
    def ceded(self) -> Mapping[Knob, str]:
        """The knobs that the agent must not write, with the reasons."""
        return {knob: each.reason for knob, each in self._ceded.items()}

    def poll(
        self, now_ns: int, pods: Collection[Pod], best_effort_levels: Iterable[str], holds: Holds
    ) -> None:
        """Collect the evidence and update ``ceded``.

        :param pods: the pods of this node.
        :param best_effort_levels: the cgroups that contain the BestEffort pods.
        """
        present: list[str] = []
        # Filtered first, because this runs whenever one of a thousand pods has changed.
        for pod in [
            pod
            for pod in pods
            if (pod.owner is not None and pod.owner.kind == "DaemonSet") or _KOORD_APP in pod.labels
        ]:
            name = _claimed_agent(pod)
            if name and name not in present and self._is_trusted(pod, name):
                present.append(name)
        writer = " and ".join(sorted(present)) or "another program"
        seen = dict(self._written(best_effort_levels, writer, holds))
        if _KOORDLET in present and any(_BATCH in pod.annotations for pod in pods):
            seen[Knob.CPU_QUOTA] = f"{_KOORDLET} sets that of pods with batch resources"
        seen |= {knob: text for name in present for knob, text in self._resctrl_of(name)}
        for knob, reason in seen.items():
            self._ceded[knob] = _Ceded(reason, now_ns)
        old = [knob for knob, each in self._ceded.items() if now_ns - each.seen_ns > _KEEP_NS]
        for knob in old:
            del self._ceded[knob]

    def _is_trusted(self, pod: Pod, name: str) -> bool:
        is_system = classify(pod, self._rules).qos is QosClass.SYSTEM
        return is_system or pod.namespace == _NAMESPACES[name]

    def _written(
        self, levels: Iterable[str], writer: str, holds: Holds
    ) -> Iterator[tuple[Knob, str]]:
        v2 = self._layout.version == "v2"
        files: tuple[tuple[Knob, str, tuple[str, ...]], ...] = (
            (Knob.CPU_QUOTA, "cpu.max" if v2 else "cpu.cfs_quota_us", ("max", "-1")),
            (Knob.SCHED_IDLE, "cpu.idle", ("0",)),
            (Knob.MEMORY_HIGH, "memory.high", ("max",)),
            (
                Knob.MEMORY_MAX,
                "memory.max" if self._memory.version == "v2" else "memory.limit_in_bytes",
                ("max", str(NO_LIMIT_V1_BYTES)),
            ),
        )
        if v2:  # all CPUs, after a restore
            files += ((Knob.CPUSET, "cpuset.cpus", (format_cpuset(possible_cpus()),)),)
        of_cpu = self._layout.hierarchy, self._layout.mount
        of_memory = self._memory.hierarchy, self._memory.mount
        for level in levels:
            for knob, name, free in files:
                hierarchy, mount = of_memory if knob is Knob.MEMORY_MAX else of_cpu
                if mount is None:
                    continue
                folder = mount / level[1:]
                try:
                    value = (folder / name).read_text(encoding="ascii").split()[0]
                    inode = folder.stat().st_ino
                except (OSError, IndexError):  # gone, or this kernel has no such file
                    continue
                if value not in free and not holds(CgroupId(hierarchy, inode), knob):
                    # Without the value: koordlet writes a new one every second, and the reason is
                    # the value of a metric label.
                    yield knob, f"{writer} set {name} of {level}"

    def _resctrl_of(self, name: str) -> Iterator[tuple[Knob, str]]:
        for group in sorted(_RESCTRL_GROUPS[name]):
            if (self._resctrl / group / "schemata").exists():
                for knob in _RESCTRL_KNOBS:
                    yield knob, f"{name} has the resctrl group {group}"
                return


def _claimed_agent(pod: Pod) -> str:
    """Return the known agent that *pod* claims to be, by its label or owner; empty: none."""
    if pod.labels.get(_KOORD_APP) == _KOORDLET:
        return _KOORDLET
    owner = pod.owner
    if owner is not None and owner.kind == "DaemonSet" and owner.name in _NAMESPACES:
        return owner.name
    return ""
