# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Comparing settings of a knob: whose holds a workload back more, and which are the same."""

from collections.abc import Callable, Hashable, Mapping
import math
from typing import TypeVar

from controller.control.amounts import parse_amount, parse_disks
from controller.control.quota import parse_quota
from controller.control.schemata import parse_bandwidth, parse_masks
from controller.model import Knob, KnobValue

__all__ = ("is_same_setting", "is_stricter")

Key = TypeVar("Key", bound=Hashable)


def is_stricter(knob: Knob, ours: KnobValue, theirs: KnobValue) -> bool:
    """Return whether *ours* holds a workload back more than *theirs*.

    A knob that holds nobody back (cpu.burst gives, groups and trees only carry other knobs) has
    no stricter setting.
    """
    compare = _STRICTER.get(knob)
    return compare is not None and compare(ours, theirs)


def is_same_setting(knob: Knob, value: KnobValue, ours: KnobValue) -> bool:
    """Return whether *value* is ours, perhaps after the kernel doubled quota and period.

    When the period timer cannot keep up, sched_cfs_period_timer in kernel/sched/fair.c makes
    both twice as long.
    """
    if value == ours:
        return True
    if knob is not Knob.CPU_QUOTA:
        return False
    now, wanted = parse_quota(value), parse_quota(ours)
    if now.quota_us is None or wanted.quota_us is None or now.period_us < wanted.period_us:
        return False
    # Equal ratios, but for a microsecond of rounding in either quota.
    apart = abs(now.quota_us * wanted.period_us - wanted.quota_us * now.period_us)
    return apart <= now.period_us + wanted.period_us


def _quota_is_stricter(ours: KnobValue, theirs: KnobValue) -> bool:
    mine, other = parse_quota(ours).cpus, parse_quota(theirs).cpus
    return mine is not None and (other is None or mine < other)


def _idle_is_stricter(ours: KnobValue, theirs: KnobValue) -> bool:
    return ours == "1" and theirs != "1"


def _cookie_is_stricter(ours: KnobValue, theirs: KnobValue) -> bool:
    return ours != "0" and theirs == "0"


def _ways_are_stricter(ours: KnobValue, theirs: KnobValue) -> bool:
    return _is_below(_count(parse_masks(ours)), _count(parse_masks(theirs)))


def _count(masks: Mapping[int, int]) -> dict[int, float]:
    return {domain: mask.bit_count() for domain, mask in masks.items()}


def _bandwidth_is_stricter(ours: KnobValue, theirs: KnobValue) -> bool:
    return _is_below(parse_bandwidth(ours), parse_bandwidth(theirs))


def _number_is_stricter(ours: KnobValue, theirs: KnobValue) -> bool:
    return parse_amount(ours) < parse_amount(theirs)


def _numbers_are_stricter(ours: KnobValue, theirs: KnobValue) -> bool:
    return _is_below(dict(enumerate(_numbers(ours))), dict(enumerate(_numbers(theirs))))


def _numbers(value: KnobValue) -> list[float]:
    return [float(word) for word in value.split()]


def _disks_are_stricter(ours: KnobValue, theirs: KnobValue) -> bool:
    return _is_below(parse_disks(ours), parse_disks(theirs))


def _is_below(ours: Mapping[Key, float], theirs: Mapping[Key, float]) -> bool:
    """Whether nothing of *ours* is above *theirs*, and something is below; missing: no limit."""
    pairs = [
        (ours.get(key, math.inf), theirs.get(key, math.inf))
        for key in dict.fromkeys((*ours, *theirs))
    ]
    return all(mine <= other for mine, other in pairs) and any(
        mine < other for mine, other in pairs
    )


_STRICTER: Mapping[Knob, Callable[[KnobValue, KnobValue], bool]] = {
    Knob.CPU_QUOTA: _quota_is_stricter,
    Knob.SCHED_IDLE: _idle_is_stricter,
    Knob.CORE_COOKIE: _cookie_is_stricter,
    Knob.LLC_WAYS: _ways_are_stricter,
    Knob.MBA: _bandwidth_is_stricter,
    Knob.TC_CEILING: _numbers_are_stricter,
    Knob.MEMORY_HIGH: _number_is_stricter,
    Knob.IO_WEIGHT: _number_is_stricter,
    Knob.IO_MAX: _disks_are_stricter,
}
