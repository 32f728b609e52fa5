# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Comparing knob values: which one limits more, where a foreign one comes from, and what of it."""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
import math
from operator import lt
import re
from typing import TypeVar

from controller.core.knob_values import (
    MAX_PERIOD_US,
    Quota,
    format_bandwidth,
    format_disks,
    format_masks,
    format_quota,
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

__all__ = ("is_managed", "is_quota_or_doubled", "is_routine", "is_stricter", "original_after")

# Cgroups of kubelet and systemd, by their names.
_MANAGED = re.compile(r"/(?:[^/]*kubepods|[^/]+\.(?:slice|service|scope))(?:/|$)")

Key = TypeVar("Key", bound=Hashable)
Number = TypeVar("Number", int, float)
Parsed = TypeVar("Parsed")


def is_stricter(knob: Knob, value: KnobValue, reference: KnobValue) -> bool:
    """Return whether *value* limits a workload more than *reference*.

    Always false for a knob that limits nothing: cpu.burst extends a quota, groups and trees only
    carry other knobs.

    :raises ValueError: one of the texts is not a value of the knob.
    """
    compare = _STRICTER.get(knob)
    return compare is not None and compare(value, reference)


def original_after(
    knob: Knob, ours: Collection[KnobValue], found: KnobValue, original: KnobValue
) -> KnobValue:
    """Return what is to be restored where another program has made *found* of one of *ours*.

    A value may have parts: the limits of several disks, of several domains, or a quota and its
    burst. What is as in one of *ours* has its part of *original*, the rest is that of *found*.

    :raises ValueError: one of the texts is not a value of the knob.
    """
    match knob:
        case Knob.CPU_QUOTA:
            return _quota_after([*map(parse_quota, ours)], parse_quota(found), original)
        case Knob.IO_MAX:
            return format_disks(_parts_after(parse_disks, ours, found, original))
        case Knob.LLC_WAYS:
            return format_masks(_parts_after(parse_masks, ours, found, original))
        case Knob.MBA:
            return format_bandwidth(_parts_after(parse_bandwidth, ours, found, original))
    return found


def _quota_after(ours: Collection[Quota], found: Quota, original: KnobValue) -> KnobValue:
    before = parse_quota(original)
    limit = found._replace(burst_us=0)
    doublings = (each for mine in ours for each in _doublings(mine._replace(burst_us=0)))
    quota_us, period_us = (before if limit in doublings else found)[:2]
    is_ours = found.burst_us in {each.burst_us for each in ours}
    burst_us = before.burst_us if is_ours else found.burst_us
    # The kernel refuses a burst above the quota.
    return format_quota(Quota(quota_us, period_us, min(burst_us, quota_us or burst_us)))


def _parts_after(
    parse: Callable[[KnobValue], Mapping[Key, Number]],
    ours: Collection[KnobValue],
    found: KnobValue,
    original: KnobValue,
) -> dict[Key, Number]:
    mine, now, before = [*map(parse, ours)], parse(found), parse(original)
    parts = {}
    for key in {**now, **before}:
        is_ours = any(each.get(key) == now.get(key) for each in mine)
        part = before.get(key) if is_ours else now.get(key)
        if part is not None:
            parts[key] = part
    return parts


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


def is_quota_or_doubled(expected: KnobValue, found: KnobValue, *, any_period: bool = False) -> bool:
    """Return whether *found* is *expected*, possibly doubled by the kernel.

    When the period timer cannot keep up, the kernel doubles quota, period and burst together
    (sched_cfs_period_timer, commit 4929a4e6faa0, in v5.4).

    :param any_period: whether the periods of two limits may differ.
    :raises ValueError: one of the texts is not a value of cpu.quota.
    """
    got = parse_quota(found)
    limited = got.quota_us is not None
    return any(
        each == (got._replace(period_us=each.period_us) if any_period and limited else got)
        for each in _doublings(parse_quota(expected))
    )


def _doublings(quota: Quota) -> Iterator[Quota]:
    yield quota
    while quota.quota_us is not None and quota.period_us * 2 < MAX_PERIOD_US:
        quota = Quota(quota.quota_us * 2, quota.period_us * 2, quota.burst_us * 2)
        yield quota


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
