# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Knobs of a simulated node: their values, and the outcomes of an executor that writes them."""

from collections.abc import Iterable
from errno import EINVAL

from actuators.foreign_values import is_quota_or_doubled
from actuators.ordering import Backoff
from controller.core.decision import Action, Failure, Outcome
from controller.core.model import (
    CgroupId,
    Knob,
    KnobReading,
    KnobValue,
    QosClass,
    Target,
    TargetKind,
    Workload,
)

__all__ = ("KnobTable", "make_workload", "target_of")


class KnobTable:
    """The values of all knobs of a node; writes to those in ``refused`` fail with EINVAL.

    It stands for executor and kernel: a refused knob has the back-off of the executor, for which
    the node sets ``now_ns``.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self._backoff = Backoff()
        self.refused: set[tuple[int, Knob]] = set()
        self._targets: dict[tuple[int, Knob], Target] = {}
        self._values: dict[tuple[int, Knob], KnobValue] = {}
        # Of the knobs with a value that `execute` wrote.
        self._originals: dict[tuple[int, Knob], KnobValue] = {}
        # Unchanged readings stay the same objects, as those of the real poller do.
        self._readings: dict[tuple[int, Knob], KnobReading] = {}
        self._all: tuple[KnobReading, ...] | None = None

    def add(self, target: Target, knob: Knob, value: KnobValue) -> None:
        """Add a knob with its value."""
        self._targets[target.id, knob] = target
        self._set((target.id, knob), value)

    def remove(self, id_: int) -> None:
        """Remove a target with its knobs."""
        for key in [key for key in self._values if key[0] == id_]:
            del self._values[key], self._targets[key], self._readings[key]
            self._originals.pop(key, None)
        self._all = None

    def value(self, id_: int, knob: Knob) -> KnobValue:
        """Return the value of a knob."""
        return self._values[id_, knob]

    def write(self, id_: int, knob: Knob, value: KnobValue) -> None:
        """Set a knob: as a foreign value, unless it is the present one doubled by the kernel."""
        key = id_, knob
        if knob is not Knob.CPU_QUOTA or not is_quota_or_doubled(self._values[key], value):
            self._originals.pop(key, None)
        self._set(key, value)

    def execute(self, actions: Iterable[Action]) -> tuple[Outcome, ...]:
        """Write knobs; a removed target fails as gone, a knob in ``refused`` with EINVAL."""
        return tuple(map(self._execute, actions))

    def readings(self) -> tuple[KnobReading, ...]:
        """Return the readings of all knobs."""
        if self._all is None:
            self._all = tuple(self._readings.values())
        return self._all

    def _set(self, key: tuple[int, Knob], value: KnobValue) -> None:
        self._values[key] = value
        original = self._originals.get(key)
        self._readings[key] = KnobReading(self._targets[key], key[1], value, original)
        self._all = None

    def _execute(self, action: Action) -> Outcome:
        key = (action.target.id, action.knob)
        if key not in self._values:
            return Outcome(action=action, applied=None, failure=Failure.GONE)
        if key in self.refused:
            refusal = self._backoff.refused(action.target, action.knob, self.now_ns, EINVAL, "")
            return Outcome(
                action=action,
                applied=self._values[key],
                failure=Failure.REFUSED,
                errno=EINVAL,
                original=self._originals.get(key),
                retry_ns=refusal.retry_at_ns,
            )
        self._backoff.clear(action.target, action.knob)
        original = self._originals.setdefault(key, self._values[key])
        if action.value == original:
            del self._originals[key]
        self._set(key, action.value)
        return Outcome(action=action, applied=action.value, original=self._originals.get(key))


def target_of(workload: Workload) -> Target:
    """Return the target of the knobs of *workload*."""
    return Target(TargetKind.CGROUP, workload.cgroup.hierarchy, workload.cgroup.id, workload.path)


def make_workload(name: str, id_: int, qos: QosClass, profile: str) -> Workload:
    """Return a workload *name* whose cgroup has the id *id_*."""
    return Workload(
        name=name,
        cgroup=CgroupId("cpu", id_),
        path=f"/{name}",
        qos=qos,
        service=name,
        profile=profile,
    )
