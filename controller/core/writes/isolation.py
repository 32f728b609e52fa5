# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Static isolation: best-effort work stays off the CPUs that kubelet gave to one pod alone.

kubelet moves containers off such CPUs only every 10 s, and only those that it knows. No loop moves
this knob: it follows ``Snapshot.shared_cpus``.
"""

from controller.core.decision import Action
from controller.core.knob_values import format_cpuset, parse_cpuset
from controller.core.knobs.knob_state import KnobState
from controller.core.model import Knob, KnobValue
from controller.core.workload_index import WorkloadIndex

__all__ = ("isolation_actions",)


def isolation_actions(
    index: WorkloadIndex, shared_cpus: str, knobs: KnobState, now_ns: int
) -> list[Action]:
    """Return the writes that keep best-effort work on *shared_cpus*; empty: everything goes back.

    A set of another program is narrowed, never widened. Where it has none of *shared_cpus* it
    stays, because a set may not be empty.
    """
    if not shared_cpus:
        gone = [(each, None) for each in knobs.touched(Knob.CPUSET)]
        return knobs.limit(Knob.CPUSET, gone, "no CPU belongs to one pod alone", now_ns)
    values = (
        (cgroup, _within(shared_cpus, original))
        for cgroup in sorted(index.cpuset_targets)
        if (original := knobs.original(*cgroup, Knob.CPUSET)) is not None
    )
    reason = f"other CPUs than {shared_cpus} belong to one pod alone"
    return knobs.limit(Knob.CPUSET, values, reason, now_ns)


def _within(shared_cpus: str, original: KnobValue) -> KnobValue | None:
    theirs, ours = parse_cpuset(original), parse_cpuset(KnobValue(shared_cpus)) or frozenset()
    both = ours if theirs is None else ours & theirs
    return format_cpuset(both) if both else None
