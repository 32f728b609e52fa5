# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which knobs another agent of this node already owns: koordlet or katalyst-agent.

Two agents that write one file undo each other's work every few seconds. So what is seen to be
managed by one of them is left to it, knob by knob. The evidence is what they write where kubelet
writes nothing (a quota, sched-idle or memory.high on the cgroup of all BestEffort pods; resctrl
groups), and pods whose cgroups they set by contract. A pod passes for one of these agents only if
it runs as part of the system or in the namespace that is theirs.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from controller.core.model import CgroupId, Knob, QosClass
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.workloads.pods.classify import ClassRules, classify
from controller.workloads.pods.pod import Pod

__all__ = ("Holds", "OtherAgents")

# Returns whether the agent itself has set a knob.
Holds = Callable[[CgroupId, Knob], bool]

_KOORDLET, _KATALYST = "koordlet", "katalyst-agent"
_KOORD_APP = "koord-app"
_NAMESPACES = {_KOORDLET: "koordinator-system", _KATALYST: "katalyst-system"}
# Resources of batch pods; koordlet makes quota and weight of them (its hook BatchResource).
_BATCH = "node.koordinator.sh/extended-resource-spec"
_RESCTRL_GROUPS = {
    _KOORDLET: frozenset({"LSR", "LS", "BE"}),
    _KATALYST: frozenset({"reclaim", "dedicated", "share", "system"}),
}
_RESCTRL_KNOBS = (Knob.RESCTRL_GROUP, Knob.LLC_WAYS, Knob.MBA)
# They write at least once a minute; who has not for this time is gone.
_KEEP_NS = 300 * NS_PER_SEC


@dataclass(slots=True)
class _Ceded:
    """A knob that is left to somebody, because of what was seen at ``seen_ns``."""

    reason: str
    seen_ns: int


class OtherAgents:
    """Looks for other agents; ``left`` are the knobs that are theirs, with the reason."""

    def __init__(self, layout: CgroupLayout, rules: ClassRules, resctrl: Path) -> None:
        self._layout = layout
        self._rules = rules
        self._resctrl = resctrl
        self._left: dict[Knob, _Ceded] = {}

    @property
    def ceded(self) -> Mapping[Knob, str]:
        """The knobs that are to be left alone, and why."""
        return {knob: each.reason for knob, each in self._left.items()}

    def poll(
        self, now_ns: int, pods: Collection[Pod], best_effort_levels: Iterable[str], holds: Holds
    ) -> None:
        """Look who manages what now.

        :param best_effort_levels: the cgroups that hold the BestEffort pods.
        """
        present: list[str] = []
        # Of a thousand pods a few: this is asked whenever one has changed.
        for pod in [
            pod
            for pod in pods
            if (pod.owner is not None and pod.owner.kind == "DaemonSet") or _KOORD_APP in pod.labels
        ]:
            name = _manager(pod)
            if name and name not in present and self._is_trusted(pod, name):
                present.append(name)
        who = " and ".join(sorted(present)) or "somebody else"
        seen = dict(self._written(best_effort_levels, who, holds))
        if _KOORDLET in present and any(_BATCH in pod.annotations for pod in pods):
            seen[Knob.CPU_QUOTA] = f"{_KOORDLET} sets that of pods with batch resources"
        seen |= {knob: text for name in present for knob, text in self._resctrl_of(name)}
        for knob, reason in seen.items():
            self._left[knob] = _Ceded(reason, now_ns)
        old = [knob for knob, each in self._left.items() if now_ns - each.seen_ns > _KEEP_NS]
        for knob in old:
            del self._left[knob]

    def _is_trusted(self, pod: Pod, name: str) -> bool:
        is_system = classify(pod, self._rules).qos is QosClass.SYSTEM
        return is_system or pod.namespace == _NAMESPACES[name]

    def _written(self, levels: Iterable[str], who: str, holds: Holds) -> Iterator[tuple[Knob, str]]:
        v2 = self._layout.version == "v2"
        files = (
            (Knob.CPU_QUOTA, "cpu.max" if v2 else "cpu.cfs_quota_us", ("max", "-1")),
            (Knob.SCHED_IDLE, "cpu.idle", ("0",)),
            (Knob.MEMORY_HIGH, "memory.high", ("max",)),
        )
        for level in levels:
            folder = self._layout.mount / level[1:]
            for knob, name, free in files:
                try:
                    value = (folder / name).read_text(encoding="ascii").split()[0]
                    inode = folder.stat().st_ino
                except (OSError, IndexError):  # gone, or this kernel has no such file
                    continue
                if value not in free and not holds(CgroupId(self._layout.hierarchy, inode), knob):
                    # Without the value: koordlet writes another one every second, and the
                    # reason is a label of a metric.
                    yield knob, f"{who} set {name} of {level}"

    def _resctrl_of(self, name: str) -> Iterator[tuple[Knob, str]]:
        for group in sorted(_RESCTRL_GROUPS[name]):
            if (self._resctrl / group / "schemata").exists():
                for knob in _RESCTRL_KNOBS:
                    yield knob, f"{name} has the resctrl group {group}"
                return


def _manager(pod: Pod) -> str:
    """Return which of the known agents *pod* says that it is."""
    if pod.labels.get(_KOORD_APP) == _KOORDLET:
        return _KOORDLET
    owner = pod.owner
    if owner is not None and owner.kind == "DaemonSet" and owner.name in _NAMESPACES:
        return owner.name
    return ""
