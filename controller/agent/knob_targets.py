# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which knobs of which targets are read back: those the agent may write or has written.

The planner plans no action for a knob without a reading, so this is also the place where knobs
that belong to another agent of the node (ceded ones) are left to it.
"""

from collections.abc import Iterable, Iterator, Mapping

from controller.core.model import CgroupId, Knob, QosClass, Target, TargetKind, Workload
from controller.core.settings import IoClass, Profile, Settings, io_class_of
from controller.workloads.changes import WorkloadDiff
from controller.workloads.pods.cgroups import kubelet_writes_weight

__all__ = ("KnobTargets", "target_of")

# Frozen workloads are thawed by what froze them. The planner would restore the knob at once.
# cpuset.cpus is not read before a CPU is exclusive, which it is on few hosts.
_KNOBS = frozenset(Knob) - {Knob.FREEZE, Knob.CPUSET}


class KnobTargets:
    """The targets of workloads, and the knobs that are read of each target.

    ``ceded``: the knobs that belong to another agent. ``isolates``: cpuset.cpus is read too.
    """

    def __init__(self) -> None:
        self._workloads: tuple[Workload, ...] = ()
        # The cgroup of each best-effort workload.
        self._best_effort: dict[CgroupId, Target] = {}
        self._service_knobs: Mapping[str, frozenset[Knob]] = {}  # by profile
        self._profiles: Mapping[str, Profile] = {}
        self._io_classes: Mapping[str, IoClass] = {}
        self._own = _KNOBS
        self.isolates = False
        self.ceded: frozenset[Knob] = frozenset()

    def reconfigure(self, settings: Settings) -> None:
        """Take the knobs that the profiles and the classes of *settings* set on services."""
        self._profiles, self._io_classes = settings.profiles, settings.io_classes
        profiles = settings.profiles.values()
        self._service_knobs = {p.name: p.service_knobs for p in profiles if p.service_knobs}

    def set_workloads(self, workloads: tuple[Workload, ...], change: WorkloadDiff) -> None:
        """Take *workloads*, which differ from those before by *change*."""
        self._workloads = workloads
        best_effort = change.of_class(QosClass.BE)
        for each in best_effort.removed:
            del self._best_effort[each.cgroup]
        self._best_effort |= {w.cgroup: target_of(w) for w in best_effort.added}

    def cede(self, ceded: frozenset[Knob]) -> frozenset[Knob]:
        """Take the knobs that belong to another agent now; return those that did not before."""
        before, self.ceded = self.ceded, ceded
        if ceded != before:
            self._set_own()
        return ceded - before

    def isolate(self) -> None:
        """Read cpuset.cpus too from now on."""
        self.isolates = True
        self._set_own()

    def _set_own(self) -> None:
        self._own = (_KNOBS | {Knob.CPUSET} if self.isolates else _KNOBS) - self.ceded

    def select(self, others: Iterable[Target]) -> dict[Target, frozenset[Knob]]:
        """Return the knobs to read, of the targets of workloads and of *others*.

        Those that concern many workloads come first, because new ones are read in this order.
        """
        levels = ((w.idle_at, w.quota_at, w.memory_at, w.own_memory_at) for w in self._workloads)
        above = {level for each in levels for level in each if level}
        wanted = self._of_services()
        for target, knobs in self._of_classes():
            wanted[target] = wanted.get(target, frozenset()) | knobs
        every = (*sorted(above), *self._best_effort.values(), *others)
        wanted |= dict.fromkeys(every, self._own)
        return wanted

    def _of_services(self) -> dict[Target, frozenset[Knob]]:
        # The services whose profile sets knobs of their own, with these knobs. Not pods: their one
        # knob is the burst, below which kubelet could not lower a limit any more (an in-place
        # resize), and which has no effect where the quota of each container bites first.
        if not self._service_knobs:
            return {}
        return {
            target_of(w): self._service_knobs[w.profile] - self.ceded
            for w in self._workloads
            if w.qos is QosClass.LS
            and w.profile in self._service_knobs
            and kubelet_writes_weight(w.path) is None
        }

    def _of_classes(self) -> Iterator[tuple[Target, frozenset[Knob]]]:
        """Yield the workloads whose class for disks sets knobs, with these knobs."""
        if self._io_classes:
            for each in self._workloads:
                given = self._io_classes.get(io_class_of(each, self._profiles))
                if given is not None and (knobs := given.knobs - self.ceded):
                    yield target_of(each), knobs


def target_of(workload: Workload) -> Target:
    """Return the cgroup of *workload* as a target."""
    return Target(TargetKind.CGROUP, *workload.cgroup, workload.path)
