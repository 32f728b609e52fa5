# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Classes for disks: fixed io.weight and io.max of workloads that are not best-effort.

No loop moves these values. Limits that another program gave a workload on other disks stay.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from controller.core.decision import Action
from controller.core.knob_values import format_amount, format_disks, parse_disks
from controller.core.knobs.knob_state import KnobState
from controller.core.model import CLASS_KNOBS, Knob, KnobReading, KnobValue, Workload
from controller.core.settings import IoClass, Settings, io_class_of
from controller.core.workload_index import WorkloadIndex

__all__ = ("IoClassState", "class_actions", "io_class_states")

_UNKNOWN = IoClass(problem="a profile names it, and io.classes has no such class")


def class_actions(
    index: WorkloadIndex, classes: Mapping[str, IoClass], knobs: KnobState, now_ns: int
) -> Iterator[Action | None]:
    """Yield the writes that give each workload the values of its class; ``None``: not needed."""
    for (scope, id_), name in index.io_classes.items():
        given = classes.get(name, _UNKNOWN)
        for knob in sorted(CLASS_KNOBS):
            original = knobs.original(scope, id_, knob)
            if original is None:
                continue
            if knob in given.knobs:
                value = _value(given, knob, original)
                yield knobs.request(scope, id_, knob, value, f"io class {name}", now_ns)
            else:
                text = f"restore {knob}: io class {name} does not set it"
                yield knobs.restore(scope, id_, knob, text, now_ns)


def _value(given: IoClass, knob: Knob, original: KnobValue) -> KnobValue:
    """Return the value of *knob* for a workload whose original is *original*."""
    if knob is Knob.IO_WEIGHT and given.weight is not None:
        return format_amount(given.weight)
    return format_disks(parse_disks(original) | parse_disks(given.limits))


@dataclass(frozen=True, slots=True, kw_only=True)
class IoClassState:
    """State of one class: how many workloads have it, and for how many its values are not in force.

    ``present``: all of the class is in force, for one workload or more and for each of them.
    ``problem`` is the reason why the class or a part of it has no effect; empty: none is known.
    """

    name: str
    present: bool
    workloads: int
    lacking: int
    problem: str


def io_class_states(
    settings: Settings, workloads: Iterable[Workload], readings: Iterable[KnobReading]
) -> tuple[IoClassState, ...]:
    """Return the state of each class of *settings*, and of each one that only a profile names."""
    named = {each.io_class for each in settings.profiles.values()} - {""}
    classes = dict.fromkeys(sorted(named - settings.io_classes.keys()), _UNKNOWN)
    classes |= settings.io_classes
    if not classes:
        return ()
    values = {
        (each.target.scope, each.target.id, each.knob): each.value
        for each in readings
        if each.knob in CLASS_KNOBS
    }
    counts = {name: [0, 0] for name in classes}
    for workload in workloads:
        name = io_class_of(workload, settings.profiles)
        if name in classes:
            given = classes[name]
            found = {knob: values.get((*workload.cgroup, knob)) for knob in given.knobs}
            counts[name][0] += 1
            counts[name][1] += any(
                value is None or _value(given, knob, value) != value
                for knob, value in found.items()
            )
    return tuple(
        IoClassState(
            name=name,
            present=number > 0 and not lacking and not classes[name].problem,
            workloads=number,
            lacking=lacking,
            problem=classes[name].problem,
        )
        for name, (number, lacking) in counts.items()
    )
