# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Comparing knob values: which one limits more, and where a foreign one comes from."""

from collections.abc import Callable, Hashable, Mapping
import math
from operator import lt
import re
from typing import TypeVar

from controller.core.knob_values import (
    parse_amount,
    parse_bandwidth,
    parse_ceilings,
    parse_cpuset,
    parse_disks,
    parse_idle,
    parse_masks,
    parse_quota,
    parse_weight,
)
from controller.core.model import Knob, KnobValue, Target

__all__ = ("is_managed", "is_routine", "is_stricter")

# Cgroups of kubelet and systemd, by their names.
_MANAGED = re.compile(r"/(?:[^/]*kubepods|[^/]+\.(?:slice|service|scope))(?:/|$)")

Key = TypeVar("Key", bound=Hashable)
Parsed = TypeVar("Parsed")


def is_stricter(knob: Knob, value: KnobValue, reference: KnobValue) -> bool:
    """Return whether *value* limits a workload more than *reference*.

    Always false for a knob that limits nothing: cpu.burst extends a quota, groups and trees only
    carry other knobs.

    :raises ValueError: one of the texts is not a value of the knob.
    """
    compare = _STRICTER.get(knob)
    return compare is not None and compare(value, reference)


def is_routine(target: Target, value: KnobValue, first: KnobValue) -> bool:
    """Return whether a foreign *value* is the routine of kubelet, its runtime or systemd.

    They write the values that they want again and again: every minute, at an update, at a reload.
    Their cgroups are known by name, and such a write puts back *first*, the value that the agent
    found there at first.
    """
    return value == first and is_managed(target)


def is_managed(target: Target) -> bool:
    """Return whether *target* is a cgroup of kubelet or systemd, which may give it other values.

    Such as an in-place resize of a pod, or a change of a unit.
    """
    return _MANAGED.search(target.path) is not None


def _is_below(numbers: Mapping[Key, float], limits: Mapping[Key, float]) -> bool:
    """Whether none of *numbers* is above its limit and at least one is below; missing: infinite."""
    pairs = [
        (numbers.get(key, math.inf), limits.get(key, math.inf))
        for key in dict.fromkeys((*numbers, *limits))
    ]
    return all(number <= limit for number, limit in pairs) and any(
        number < limit for number, limit in pairs
    )


def _by(
    parse: Callable[[KnobValue], Parsed], is_below: Callable[[Parsed, Parsed], bool]
) -> Callable[[KnobValue, KnobValue], bool]:
    return lambda value, reference: is_below(parse(value), parse(reference))


def _cpus(value: KnobValue) -> float:
    cpus = parse_quota(value).cpus
    return math.inf if cpus is None else cpus


def _weight(value: KnobValue) -> float:
    weight = parse_idle(value)
    return -math.inf if weight is None else weight  # idle is below any weight


def _ways(value: KnobValue) -> dict[int, float]:
    return {domain: mask.bit_count() for domain, mask in parse_masks(value).items()}


def _is_part(cpus: frozenset[int] | None, of: frozenset[int] | None) -> bool:
    return cpus is not None and (of is None or cpus < of)


# By knob, whether the first value limits a workload more than the second.
_STRICTER: Mapping[Knob, Callable[[KnobValue, KnobValue], bool]] = {
    Knob.CPU_QUOTA: _by(_cpus, lt),
    Knob.SCHED_IDLE: _by(_weight, lt),
    Knob.CPUSET: _by(parse_cpuset, _is_part),
    Knob.CORE_COOKIE: _by(lambda value: value == "0", lt),
    Knob.LLC_WAYS: _by(_ways, _is_below),
    Knob.MBA: _by(parse_bandwidth, _is_below),
    Knob.TC_CEILING: _by(lambda value: dict(enumerate(parse_ceilings(value))), _is_below),
    Knob.MEMORY_HIGH: _by(parse_amount, lt),
    Knob.MEMORY_MAX: _by(parse_amount, lt),
    Knob.IO_WEIGHT: _by(parse_weight, lt),
    Knob.IO_MAX: _by(parse_disks, _is_below),
}
